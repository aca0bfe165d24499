"""Editors and agents over standard input and output: JSON Lines (docs/protocol.md), MCP and ACP."""
