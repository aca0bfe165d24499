"""Run folders on disk: journal, recorder, tape, comparison, export. What a run did is known from here alone; nothing here runs one."""
