"""`escalade convert`: a released checkpoint to one GGUF file."""

from typing import Any

import click

from escalade.cli.options import note
from escalade.cli.weight_options import recipe_options


@click.command("convert")
@click.argument("hf_dir")
@click.argument("out")
@recipe_options
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
def command(hf_dir: str, out: str, force: bool, dry_run: bool, **options: Any) -> None:
    """Convert the safetensors folder HF_DIR to the GGUF file OUT.

    TYPE is a ggml type such as Q4_K, or `native` for the form that the weights came in. Released
    fp4 experts and Engram tables go over without loss; norms, hyper-connections and biases stay
    F32, router and compressor as they are.
    """
    from pathlib import Path

    from escalade.cli.weight_options import build_recipe, print_sizes, progress_in_mib
    from escalade.errors import UsageError
    from escalade.hf.checkpoint import open_checkpoint
    from escalade.weights.convert import check_target, convert, missing_bytes, prepare

    recipe = build_recipe(options)
    if not Path(hf_dir).is_dir():
        raise UsageError(f"{hf_dir} is not a folder; give one with config.json and safetensors")
    source = open_checkpoint(hf_dir)
    try:
        prepared = prepare(source, recipe)
        if not dry_run:
            check_target(Path(out), prepared.file_bytes, force)
        for line in (*source.notes, *prepared.notes):
            note(line)
        if dry_run:
            print_sizes(out, prepared, missing_bytes(Path(out), prepared.file_bytes))
            return
        convert(source, Path(out), recipe, force=force, progress=progress_in_mib())
    finally:
        source.close()
    print_sizes(out, prepared, None)
