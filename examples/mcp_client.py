"""Sonde as a tool of another agent: start `sonde serve --mcp`, list its tools, ask one question.

    python examples/mcp_client.py "What does this do?" README.md         (needs the extra mcp)

In an agent you only name the command: `claude mcp add sonde -- sonde serve --mcp`. Files are read only inside the folder in
which the server was started, so a client cannot send it through your home directory.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.types import TextContent


async def main(question: str, *paths: str) -> int:
    # The SDK starts servers with a bare environment on purpose; pass on what names the model, and nothing else.
    passed = {name: value for name, value in os.environ.items() if name.startswith(("OPENAI_", "SONDE_"))}
    server = StdioServerParameters(command="sonde", args=["serve", "--mcp"], env={"PATH": os.environ["PATH"], **passed})
    async with Client(server) as client:
        tools = await client.list_tools()
        print("tools:", ", ".join(tool.name for tool in tools.tools))
        result = await client.call_tool("ask", {"question": question, "paths": list(paths)})
        if result.is_error:  # a path outside of the folder, for example
            print("\n".join(part.text for part in result.content if isinstance(part, TextContent)), file=sys.stderr)
            return 1
        found: dict[str, Any] = result.structured_content or {}
        print(found["status"], found["text"])
        for citation in found["citations"]:
            print(f"  {citation['path']}:{citation['start_line']}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(asyncio.run(main(*sys.argv[1:])))
