"""What code may look at: files, values, source code, traces, controls, configurations, and the workspace of an edit."""
