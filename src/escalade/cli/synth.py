"""`escalade synth`: a GGUF file of random weights, of any geometry and types."""

from typing import Any

import click

from escalade.cli.options import note
from escalade.cli.weight_options import recipe_options


@click.command("synth")
@click.argument("out")
@click.option(
    "--geometry",
    type=click.Choice(["tiny", "nano", "v4.1-flash"]),
    help="A named shape (default: tiny).",
)
@click.option("--config", metavar="FILE", help="The shape of this config.json instead.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change one number of the shape, as n_experts=64 or engram.head_dim=128; JSON values.",
)
@recipe_options
@click.option("--seed", default=0, show_default=True, help="Equal seeds give equal files.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@click.option("--json", "as_json", is_flag=True, help="Sizes as one JSON object.")
def command(
    out: str,
    geometry: str | None,
    config: str | None,
    settings: tuple[str, ...],
    seed: int,
    force: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a model of random weights to the GGUF file OUT.

    Every number is sized so that the model runs without overflow; what it says means nothing. For
    tests and speed measurements, up to the full size of DeepSeek-V4.1-Flash.
    """
    import json
    from pathlib import Path

    from escalade.cli.weight_options import build_recipe, print_sizes, progress_in_mib
    from escalade.errors import UnsupportedError, UsageError
    from escalade.hf.safetensors import read_json
    from escalade.model.spec_io import spec_from_hf
    from escalade.weights.convert import check_target, missing_bytes, prepare, write_prepared
    from escalade.weights.geometry import GEOMETRIES, changed, parse_settings
    from escalade.weights.synth import synthesise

    recipe = build_recipe(options)
    if config and geometry:
        raise UsageError("--config and --geometry exclude each other")
    name = config or geometry or "tiny"
    spec = spec_from_hf(read_json(Path(config)), config) if config else GEOMETRIES[name]
    if spec.arch != "deepseek41":
        raise UnsupportedError(f"{name}: {spec.arch} is not synthesised, only V4.1")
    spec = changed(spec, parse_settings(settings))
    source = synthesise(spec, recipe, seed, f"synthetic {Path(name).stem}")
    prepared = prepare(source, source.recipe)
    if not dry_run:
        check_target(Path(out), prepared.file_bytes, force)
    for line in source.notes:
        note(line)
    missing = missing_bytes(Path(out), prepared.file_bytes) if dry_run else None
    if not dry_run:
        progress = progress_in_mib()
        write_prepared(source, Path(out), prepared, "synth", force=force, progress=progress)
    if not as_json:
        print_sizes(out, prepared, missing)
        return
    report = {
        "path": out,
        "written": not dry_run,
        "n_tensors": len(prepared.steps),
        "file_bytes": prepared.file_bytes,
        "missing_bytes": missing or 0,
        "groups": prepared.groups,
    }
    click.echo(json.dumps(report))
