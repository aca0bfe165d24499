"""One file per command. `NAME.py` here is `sonde NAME`; it holds `register(app)` and imports what it needs when it runs:

    def register(app: typer.Typer) -> None:
        app.command()(spread(name))

No list of commands exists: adding a file adds one, and `main` imports only the file of the typed command.
"""
