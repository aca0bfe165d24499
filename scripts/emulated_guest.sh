#!/bin/bash
# What scripts/emulated.sh runs inside of an emulated machine, as root: one line for each step in /results/summary, all output beside it.
export PYTHONPATH=/src/src:/src/tests:/src/tests/escapes:/opt/wheels
ONLY=$(sed -n 's/.*sonde\.only=\([^ ]*\).*/\1/p' /proc/cmdline)
ulimit -n 65536  # some tests open thousands of files
python3 -m compileall -q -j 2 src > /dev/null

step() {  # NAME COMMAND...
  local name=$1 began=$SECONDS code=0 verdict; shift
  [[ $ONLY = all || ,$ONLY, = *,$name,* ]] || return 0
  echo "-- $name"
  "$@" > "/results/$name.log" 2>&1 || code=$?
  verdict=$([ $code = 0 ] && echo ok || echo FAILED)
  echo "$verdict $name $((SECONDS - began)) s: $(grep -E 'untrusted code| passed| failed|^[0-9]+$' "/results/$name.log" | tail -1)" | tee -a /results/summary
  grep -E '^(FAILED|ERROR) ' "/results/$name.log" | tee -a /results/summary
}

tests() { python3 -m pytest -q -p no:cacheprovider -p no:randomly -n 0 "$@"; }

(uname -rvm; cat /sys/kernel/security/lsm; echo) > /results/kernel
if grep -q landlock /sys/kernel/security/lsm; then
  step doctor python3 -m sonde doctor
  step exec python3 -m sonde exec - <<< 'print(sum(range(1000)))'
  step turns tests tests/sandbox/test_states.py tests/sandbox/test_boundary.py tests/sandbox/test_turns.py
  step corpus-root tests tests/escapes/test_escapes.py -k boundary_alone
  step corpus-user tests tests/escapes/test_escapes.py -k ordinary_user_starts
  step reach tests tests/sandbox/test_reach.py
  step checkpoint tests tests/sandbox/test_checkpoint_attacks.py
  step profiles tests tests/escapes/test_escapes.py -k 'default_profile or strict'
  step holes tests tests/escapes/test_escapes.py -k 'hole or as_large'
  step live tests -vv tests/escapes/test_escapes.py -k live
  step siege tests tests/escapes/test_siege.py
  step bombs tests tests/escapes/test_denial.py
else  # refused by name, unless the flag is typed
  step refusal bash -c "python3 -m sonde doctor; [ \$? = 1 ] && python3 -m sonde doctor | grep -e '--without landlock'"
  step doctor python3 -m sonde doctor --without landlock
  step exec python3 -m sonde exec --without landlock - <<< 'print(sum(range(1000)))'
  step corpus-without tests tests/escapes/test_escapes.py -k without_landlock
  step live tests -vv tests/escapes/test_escapes.py -k live
fi
