"""One file a command. A file `NAME.py` here is `sonde NAME`; it holds `register(app)` and imports what it needs when it is run:

    def register(app: typer.Typer) -> None:
        app.command()(spread(name))

Nothing lists the commands: adding a file adds one, and `main` imports only the file of the command that was typed.
"""
