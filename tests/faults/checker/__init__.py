"""The independent checker: judges a run from outside, after it has ended.

    driver ── RunRecord: what was accepted, what readers were shown ──┐
                                                                      ├─► judge ──► violations, or none
    Redis, Kafka ── Evidence: logs, result lines, dead letters, … ────┘

It imports nothing of headrace and shares no code with it (a test holds that): it reads the brokers with plain
client commands, decodes events by the published `.proto`, and has a fold of its own. So a mistake of ours
has to be made twice, in two ways, before it goes unseen. What it relies on is what anybody can read: the
names of topics and keys, the fields of an entry, the form of a result line.

By hand: `python -m tests.faults.checker RECORD.json redis://127.0.0.1:6379/0`
"""
