#!/bin/sh
# A small agent loop: planner, implementer, tester and reviewer take turns in a repository. Before each role runs, `sonde rlms` looks
# into the files for it, if the policy says so, and the role is told what was found.
#
#   sh loop.sh loop.json demo path/to/repository [iterations]
#
# State is kept in <repository>/.superloop/loops/<loop>/. SONDE names another sonde, PYTHON another python3.
set -u
config=$(realpath "$1") loop=$2 repo=$(realpath "$3") iterations=${4:-1}
here=$(dirname "$(realpath "$0")")
sonde=${SONDE:-sonde} python=${PYTHON:-python3}
state=$repo/.superloop/loops/$loop
mkdir -p "$state"

# field NAME...: one value out of the JSON on standard input
field() { "$python" -c 'import json, sys
value = json.load(sys.stdin)
for name in sys.argv[1:]: value = value[name]
print(json.dumps(value) if not isinstance(value, str) else value)' "$@"; }

runner() { "$python" "$here/runner.py" "$config" "$loop" "$@"; }

context_files() { # what the role should look at: everything under version control, or every file where there is none
    (cd "$repo" && git -c core.quotePath=false ls-files 2>/dev/null || find . -type f -not -path '*/.*' | sed 's|^\./||') | grep -v '^\.superloop/'
}

look_first() { # role iteration: 0 = go on, anything else = the role has failed
    role=$1 out=$state/rlms/iter-$2/$1
    mkdir -p "$out"
    context_files > "$out/context-files.txt"
    decision=$($sonde rlms decide --config "$config" --loop-id "$loop" --role "$role" --iteration "$2" --repo "$repo" \
        --context-file-list "$out/context-files.txt" --request-file "$state/last-report.md" --output-dir "$out") || return 1
    [ "$(echo "$decision" | field should_run)" = true ] || return 0
    limit() { echo "$decision" | field limits "$1"; }
    $sonde rlms --repo "$repo" --loop-id "$loop" --role "$role" --iteration "$2" --output-dir "$out" \
        --context-file-list "$out/context-files.txt" --metadata-file "$out/metadata.json" \
        --max-steps "$(limit max_steps)" --max-depth "$(limit max_depth)" \
        --timeout-seconds "$(limit timeout_seconds)" --max-subcalls "$(limit max_subcalls)" \
        --require-citations "$(echo "$decision" | field output require_citations)" \
        --root-command-json "$(runner "$role" command)" --root-args-json "$(runner "$role" args)" \
        --root-prompt-mode "$(runner "$role" prompt_mode)" \
        --fail-mode "$(echo "$decision" | field fail_mode)" --standalone # this loop keeps no status or index of its own
}

prompt_for() { # role iteration: the role's prompt, with what was found where it can be relied on
    echo "You are the $1 of the loop $loop, iteration $2, in $repo."
    [ -f "$state/last-report.md" ] && { echo; echo "## The report before yours"; cat "$state/last-report.md"; }
    if $sonde rlms gate --output-dir "$state/rlms/iter-$2/$1" > /dev/null; then
        echo; echo "## What was found in the files for you"; cat "$state/rlms/latest/$1.md"
    fi
    echo; echo "Answer with your report. Write RLMS_REQUEST in it if the next role should have the files looked into first."
}

iteration=0
: > "$state/last-report.md"
while [ $((iteration += 1)) -le "$iterations" ]; do
    for role in planner implementer tester reviewer; do
        look_first "$role" "$iteration" || { echo "$role failed: rlms failed and fail_mode is fail_role" >&2; exit 1; }
        reports=$state/reports/iter-$iteration
        mkdir -p "$reports"
        prompt_for "$role" "$iteration" > "$reports/$role.prompt.md"
        (cd "$repo" && runner "$role" run "$reports/$role.prompt.md") > "$reports/$role.md" || { echo "$role failed" >&2; exit 1; }
        cp "$reports/$role.md" "$state/last-report.md"
        echo "iteration $iteration: $role done"
    done
done
