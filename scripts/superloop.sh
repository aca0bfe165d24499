#!/usr/bin/env bash
# Tests `sonde rlms` in the place of Superloop's own worker: its bats files unchanged, its canary loop, and a loop of four roles whose
# agents are scripts. SUPERLOOP names a git checkout of Supergent/superloop; it is cloned to a temporary folder and stays as it is.
set -euo pipefail

if [[ -z "${SUPERLOOP:-}" || ! -f "$SUPERLOOP/superloop.sh" ]]; then
    echo "SUPERLOOP must name a git checkout of Supergent/superloop, as in: make test-superloop SUPERLOOP=../superloop" >&2
    exit 2
fi
for tool in bats jq; do
    command -v "$tool" > /dev/null && continue
    command -v apt-get > /dev/null || { echo "$tool is not installed" >&2; exit 2; }
    apt-get update -qq && apt-get install -y -qq "$tool" > /dev/null
done

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
git clone -q "$(cd "$SUPERLOOP" && pwd)" "$place/superloop"
cd "$place/superloop"
git update-ref refs/remotes/origin/main HEAD # whatever branch was checked out: the canary's lifecycle gate asks for it
printf '#!/usr/bin/env bash\nexec sonde rlms "$@"\n' > scripts/rlms

echo "== its own tests"
bats tests/rlms.bats tests/rlms-canary-gate.bats

echo "== its canary loop"
mkdir "$place/bin" # the canary's configuration names codex, which the canary does not call
printf '#!/bin/sh\nexit 1\n' > "$place/bin/codex"
chmod +x "$place/bin/codex"
PATH="$place/bin:$PATH" scripts/run-local-canary.sh

echo "== a loop of four roles, one of which reads what it may not"
cat > "$place/agent" <<'AGENT'
#!/usr/bin/env bash
# Every role, the root model of its look at the files, and the sub-calls of that.
prompt=$(cat)
case "$prompt" in # a prompt holds those of the steps before it
"what is this?"*) echo "a spec" ;;
*"'tester'"*"Step 2/"*) echo 'try:
    read_file("/etc/passwd")
except Exception:
    set_final("not stopped")' ;;
*"Step 2/"*) echo 'set_final({"highlights": ["looked twice"], "citations": []})' ;;
*"Step 1/"*) cat <<'CODE'
path = [name for name in list_files() if name.endswith("spec.md")][0]
append_highlight("sub-call: " + sub_rlm("what is this?\n" + read_file(path, 1, 40)))
for row in grep("must", path):
    add_citation(row["path"], row["start_line"], row["end_line"], row["signal"], row["snippet"])
print("looked")
CODE
;;
*) echo "<promise>DONE</promise>" > "$1" ;;
esac
AGENT
chmod +x "$place/agent"
repo=$place/repo
mkdir -p "$repo/.superloop/specs"
cp -r .superloop/roles "$repo/.superloop/"
printf '# Spec\n\nIt must count.\n' > "$repo/.superloop/specs/spec.md"
git -C "$repo" init -q -b main
git -C "$repo" add .
git -C "$repo" -c user.email=a@example.com -c user.name=a commit -q -m start
jq -n --arg agent "$place/agent" '{
  runners: {script: {command: [$agent], args: ["{last_message_file}"], prompt_mode: "stdin"}},
  loops: [{
    id: "four", spec_file: ".superloop/specs/spec.md", max_iterations: 1, completion_promise: "DONE", checklists: [],
    tests: {mode: "disabled", commands: []},
    evidence: {enabled: false, require_on_completion: false, artifacts: []},
    approval: {enabled: false, require_on_completion: false}, reviewer_packet: {enabled: false},
    timeouts: {enabled: false, default: 300, planner: 300, implementer: 300, tester: 300, reviewer: 300},
    stuck: {enabled: false, threshold: 3, action: "report_and_stop", ignore: []},
    rlms: {
      enabled: true, mode: "hybrid", request_keyword: "RLMS_REQUEST",
      auto: {max_lines: 1, max_estimated_tokens: 1, max_files: 40},
      roles: {planner: true, implementer: true, tester: true, reviewer: true},
      limits: {max_steps: 3, max_depth: 1, timeout_seconds: 120, max_subcalls: 4},
      output: {format: "json", require_citations: true},
      policy: {force_on: false, force_off: false, fail_mode: "warn_and_continue"}
    },
    roles: {planner: {runner: "script"}, implementer: {runner: "script"}, tester: {runner: "script"}, reviewer: {runner: "script"}}
  }]
}' > "$repo/.superloop/config.json"
./superloop.sh run --repo "$repo" --loop four > "$place/stdout" || { cat "$place/stdout"; exit 1; }
grep -q "Loop 'four' complete" "$place/stdout"

loop=$repo/.superloop/loops/four
same() { # WHAT EXPECTED FOUND
    [[ "$2" == "$3" ]] || { printf '%s\nexpected: %s\nfound:    %s\n' "$1" "$2" "$3" >&2; exit 1; }
    echo "ok $1"
}
roles=(planner implementer tester reviewer)
statuses=$(for role in "${roles[@]}"; do jq -r .status "$loop/rlms/latest/$role.status.json"; done | xargs)
same "a violation fails the look of one role and no other" "ok ok failed ok" "$statuses"
same "the violation is named" sandbox_violation "$(jq -r .error_code "$loop/rlms/latest/tester.json")"
same "what the failed look had found is kept" "1 sub-call: a spec" \
    "$(jq -r '"\(.citations | length) \(.highlights[0])"' "$loop/rlms/latest/tester.json")"
same "citations are proved" "regex_match It must count." \
    "$(jq -r '.citations[0] | "\(.signal) \(.snippet)"' "$loop/rlms/latest/planner.json")"
same "every run of a program is counted" "2 1 3" \
    "$(jq -r '.stats | "\(.step_count) \(.subcall_count) \(.cli_run_count)"' "$loop/rlms/latest/planner.json")"
same "the loop's events are its own, one start and one end per role, each with a run_id" "4 4 0" \
    "$(jq -sr '"\(map(select(.event == "rlms_start")) | length) \(map(select(.event == "rlms_end")) | length) \(map(select(.run_id == null)) | length)"' "$loop/events.jsonl")"
same "the index is its own, one entry per role" "${roles[*]}" "$(jq -r '[.entries[].role] | join(" ")' "$loop/rlms/index.json")"
same "beside the loop's files there are three of ours" \
    "context-files.txt metadata.json result.json status.json summary.md worker-stderr.log" "$(ls "$loop/rlms/iter-1/planner" | xargs)"
same "no result is printed into the loop's output" 0 "$(grep -c '"ok"' "$place/stdout" || true)"
