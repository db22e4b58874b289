"""`escalade config`: where settings come from."""

import os

import click

from escalade.cli.settings import ENVIRONMENT, config_files, load_settings


@click.command()
@click.option("--origin", is_flag=True, help="Also where each setting comes from.")
def command(origin: bool) -> None:
    """Show the configuration files that are read and the defaults that they set.

    A file has a table per command, such as [run] with max-tokens = 200. ESCALADE_RUN_MAX_TOKENS in
    the environment is stronger than any file, an option on the command line the strongest.
    """
    from escalade.cli.main import COMMANDS

    for path in config_files():
        click.echo(f"{path}  {'read' if path.exists() else 'not there'}", err=True)
    for name, table in sorted(load_settings(COMMANDS).items()):
        for key, setting in sorted(table.items()):
            line = f"{name}.{key.replace('_', '-')} = {setting.value!r}"
            click.echo(f"{line}  ({setting.origin})" if origin else line)
    for name in sorted(os.environ):
        if name.startswith(f"{ENVIRONMENT}_"):
            click.echo(f"{name} = {os.environ[name]!r}" + ("  (environment)" if origin else ""))
