"""Public doubles for tests."""
