"""What the scripted models of the golden runs say, for recording them and for going on with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sonde.testing import SeenRequest

TRACE = "a" * 32
TOOL = f"{2:016x}"
MODEL = "openai:gpt-4o-mini"
FOLLOWING_QUESTION = "And what did the gateway do?"

LOOK = "hits = grep('ERROR|WARN')\nprint(read_file('checkout.log'))"
ASK = [
    f"Look for trouble first.\n```python\n{LOOK}\nretries = [hit for hit in str(hits).splitlines() if 'retry' in hit]\n```",
    (
        "```python\nclass Row:\n    def __init__(self, text): self.text = text\n"
        "rows = [Row(line) for line in read_file('checkout.log').splitlines()]\n"
        "def longest(rows): return max(rows, key=lambda row: len(row.text)).text\n"
        "numbers = (n for n in range(3))\nprint(len(rows), longest(rows))\n```"
    ),
    "```python\nFINAL('pay gave up after three attempts [checkout.log:2-4], then checkout failed [checkout.log:5]')\n```",
]
FOLLOW_UP = [
    "```python\nprint(len(rows), longest(rows), hits == grep('ERROR|WARN'))\nprint(read_file('gateway.log', 2, 3))\n```",
    "```python\nFINAL(f'the gateway pool of 2 was exhausted [gateway.log:2-3]; {len(rows)} lines were looked at')\n```",
]
ACTIONS = [
    json.dumps({"type": "tool_call", "tool_name": "grep", "args": {"pattern": "pool"}}),
    json.dumps({"type": "tool_call", "tool_name": "read_file", "args": {"path": "gateway.log"}}),
    json.dumps({"type": "delegate_subcall", "objective": "what does pay.ts do?", "use_planner": True, "context": {}}),
    json.dumps(
        {
            "type": "finalize",
            "output": {
                "answer": "The pool went from 2 to 20.",
                "citations": [{"path": "gateway.log", "start_line": 1, "end_line": 4}],
            },
        }
    ),
]
CHILD_ACTIONS = [
    json.dumps({"type": "tool_call", "tool_name": "read_file", "args": {"path": "pay.ts"}}),
    json.dumps(
        {
            "type": "finalize",
            "output": {
                "answer": "it tries three times",
                "citations": [{"path": "pay.ts", "start_line": 1, "end_line": 1}],
            },
        }
    ),
]
SUBCALLS = [
    (
        "```python\nprint(read_file('checkout.log'))\n"
        "print(llm_query('one question?'), llm_batch(['batch question 1?', 'batch question 2?']))\n```"
    ),
    "```python\nprint(rlm_batch(['child 1: read checkout.log', 'child 2: read gateway.log']))\nprint(sub_rlm('child 3: how often?'))\n```",
    (
        "```python\nfound = delegate_subcall('child 4: who reloaded?', context={'focus': 'gateway'})\n"
        "print(found['status'], found['summary'])\n```"
    ),
    "```python\nFINAL('three attempts [checkout.log:4] against a pool of two [gateway.log:2]')\n```",
]
CHILDREN = {
    "one question?": ["one answer"],
    "batch question 1?": ["first answer"],
    "batch question 2?": ["second answer"],
    "child 1": [
        "```python\nprint(read_file('checkout.log', 4, 4))\n```",
        "```python\nadd_citation('checkout.log', 4, 4)\nFINAL('gave up')\n```",
    ],
    "child 2": [
        "```python\nprint(read_file('gateway.log', 2, 2))\n```",
        "```python\nadd_citation('gateway.log', 2, 2)\nFINAL('exhausted')\n```",
    ],
    "child 3": ["three times"],
    "child 4": ["```python\nprint(grep('reloaded'))\n```", "```python\nFINAL('nobody is named')\n```"],
}
SAMPLE = "export function trim(text: string): string {\n  return text.trim();\n}\n"
"""The file before the edit; the material has it as the edit left it, which a replay needs."""
PATCH = '''apply_patch("""*** Begin Patch
*** Update File: sample.ts
@@
 export function trim(text: string): string {
   return text.trim();
 }
+
+export function squeeze(text: string): string {
+  return text.replace(/ +/g, " ").trim();
+}
*** End Patch""")'''
EDIT = [
    "```python\nprint(read_file('sample.ts')['content'])\nprint(llm_query('plan: where does squeeze go?'))\n```",
    f"```python\n{PATCH}\n```",
    "```python\nprint(read_file('sample.ts')['content'])\n```",
    "```python\nFINAL('Added squeeze. [sample.ts:5-7]')\n```",
]
REFS = f"[{{'kind': 'SPAN', 'ref': '{TOOL}'}}, {{'kind': 'TOOL_IO', 'ref': 'tool:{TOOL}'}}]"
LOOK_AT_TOOL = f"print(get_span('{TOOL}')['summary']['status_message'], get_tool_io('{TOOL}'))"


def by_schema(*blocks: str) -> list[str]:
    """Replies as the engines over traces ask for them."""
    return [json.dumps({"reasoning": "as scripted", "code": block}) for block in blocks]


RCA = by_schema(
    f"{LOOK_AT_TOOL}\nprint(delegate_subcall('test the tool', context={{'candidate_label': 'tool_failure'}})['status'])",
    f"SUBMIT(primary_label='tool_failure', summary='the booking tool timed out', confidence=0.8, "
    f"evidence_refs={REFS}, remediation=['retry'], gaps=[])",
)
RCA_CHILD = {
    "test the tool": by_schema(
        LOOK_AT_TOOL,
        f"SUBMIT(label='tool_failure', confidence=0.8, supporting_facts=['it timed out'], evidence_refs={REFS}, gaps=[])",
    )
}
CONTROL = "execution.hard_failures"
COMPLIANCE = by_schema(
    LOOK_AT_TOOL,
    f"SUBMIT(findings=[{{'control_id': '{CONTROL}', 'pass_fail': 'fail', 'confidence': 0.9, 'rationale': 'it timed out', "
    f"'evidence_refs': [{{'kind': 'SPAN', 'ref': '{TOOL}'}}]}}], gaps=[])",
)
FAILED_PAY = f"{2:015x}b"
SPAN_PAY = f"'evidence_refs': [{{'kind': 'SPAN', 'ref': '{FAILED_PAY}'}}]"
INCIDENT = by_schema(
    f"print(read_trace('{2:032x}'))",
    "c = config_changes[-1]\n"
    "proof = {'diff_ref': c['diff_ref'], 'evidence_refs': [{'kind': 'CONFIG_DIFF', 'ref': c['diff_ref']}]}\n"
    "SUBMIT(incident_summary='checkout failed for want of connections', impacted_components=['pay'], confidence=0.7, gaps=[], "
    f"timeline=[{{'timestamp': '2026-01-01T00:01:01Z', 'event': 'pay failed', {SPAN_PAY}}}], "
    f"hypotheses=[{{'statement': 'the pool was too small', 'rank': 1, {SPAN_PAY}}}], "
    "suspected_change={'change_type': 'config', 'change_ref': 'two', 'summary': 'the pool went from 20 to 2', **proof})",
)
SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "integer"}, "service": {"type": "string"}},
    "required": ["order", "service"],
    "additionalProperties": False,
}
BATCH_ITEM = [
    "```python\nprint(grep('failed'))\n```",
    "```python\nadd_citation('checkout.log', 5, 5)\nFINAL({'order': '4711', 'service': 'checkout'})\n```",
    "```python\nFINAL({'order': 4711, 'service': 'checkout'})\n```",
]
LIMIT = [
    f"```python\nfound_{number} = grep('pool')\nprint(read_file('gateway.log', {number}, {number}))\n```"
    for number in (1, 2, 3)
] + ["I would need more turns."]
RLMS = [
    "Thinking.\n```python\nprint(read_file('src/pay.txt', 1, 2))\nprint(sub_rlm('what is retried?'))\n```\n",
    (
        "```python\nappend_highlight('pay retries')\nadd_citation('src/pay.txt', 1, 2, 'retry')\n"
        "set_final({'highlights': ['the gateway only']})\n```\n"
    ),
]


@dataclass(frozen=True, slots=True)
class Words:
    """What one run's model says: its root session, and its sub-calls by a piece of their task."""

    root: Sequence[str]
    children: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def __call__(self, seen: SeenRequest) -> str:
        """The reply, by how much a session has said already; sessions are told apart by their first message from the user."""
        messages = seen.body["messages"]
        said = sum(message["role"] == "assistant" for message in messages)
        task = next(message["content"] for message in messages if message["role"] == "user")
        replies = next((found for key, found in self.children.items() if key in task), self.root)
        return replies[min(said, len(replies) - 1)]


WORDS = {
    "ask": Words(ASK),
    "follow-up": Words(FOLLOW_UP),
    "actions": Words(ACTIONS, {"what does pay.ts do?": CHILD_ACTIONS}),
    "subcalls": Words(SUBCALLS, CHILDREN),
    "interrupted": Words(SUBCALLS, CHILDREN),
    "limit": Words(LIMIT),
    "edit": Words(EDIT, {"plan:": ["after trim"]}),
    "rca": Words(RCA, RCA_CHILD),
    "compliance": Words(COMPLIANCE),
    "incident": Words(INCIDENT),
    "batch-item": Words(BATCH_ITEM),
}
