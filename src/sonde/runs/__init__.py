"""Run folders on disk: journal, recorder, recording, comparison, export. What a run did is known from here alone; nothing here runs one."""
