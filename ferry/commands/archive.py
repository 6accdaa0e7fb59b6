"""`ferry archive`: packs a target of `ferry serve`, or a model as torch-model-archiver does."""

import glob
import importlib.metadata
import json
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import click

from batching.models.spec import NAME_PATTERN, VERSION_PATTERN
from ferry.serving.served_targets import CONFIG_FILE, MANIFEST_NAME, ServedTarget, read_target

BUILT_IN_HANDLERS = (
    "base_handler",
    "text_classifier",
    "image_classifier",
    "object_detector",
    "image_segmenter",
    "dali_image_classifier",
    "vllm_handler",
    "trt_llm_handler",
    "tensor_model",
)
SUFFIXES = {"default": ".mar", "zip-store": ".mar", "tgz": ".tar.gz", "no-archive": ""}
_NEEDED = ("model_name", "version", "handler")
_OR_TARGET = "Give it, or a TARGET such as model.py."
_NOT_WITH_TARGET = ("handler", "serialized_file", "model_file", "config_file")
_FILES = ("model_file", "requirements_file", "config_file")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

# In the manifest's order.
_MANIFEST_KEYS = {
    "modelName": "model_name",
    "serializedFile": "serialized_file",
    "handler": "handler",
    "modelFile": "model_file",
    "modelVersion": "version",
    "requirementsFile": "requirements_file",
    "configFile": "config_file",
}

# An archive's name and contents: the options, by their names, and `target`.
Recipe = Mapping[str, Any]


def _check_word(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    is_version = parameter.name == "version"
    plus = "'+' " if is_version else ""
    if value and not (VERSION_PATTERN if is_version else NAME_PATTERN).fullmatch(value):
        raise click.BadParameter(
            f"{value!r}: use letters, digits, '.', '_', {plus}and '-', at most 128 "
            "of them, beginning with a letter, digit or '_'."
        )
    return value


class _Command(click.Command):
    """Takes `-v=1` for `-v 1`, as torch-model-archiver does."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        shortened = [re.sub(r"^(-[vrc])=", r"\1", argument) for argument in arguments]
        return super().parse_args(context, shortened)


@click.command(cls=_Command)
@click.argument("target", default="")
@click.option(
    "--model-name",
    default="",
    callback=_check_word,
    help="Name to serve under.  [required without TARGET]",
)
@click.option(
    "-v",
    "--version",
    default="",
    callback=_check_word,
    help="Version of the model.  [required without TARGET]",
)
@click.option(
    "--handler",
    default="",
    help="Python file, file.py:function, or a built-in handler such as image_classifier.  "
    "[required without TARGET]",
)
@click.option("--serialized-file", type=_FILE, help="Weights: TorchScript, or a state dict.")
@click.option("--model-file", type=_FILE, help="Python file with the model's class.")
@click.option(
    "--extra-files",
    default="",
    help="More files, separated by commas. Wildcards work; a folder stands for its content.",
)
@click.option("--runtime", type=click.Choice(["python", "python3"]), default="python")
@click.option(
    "--export-path",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder for the archive.",
)
@click.option(
    "--archive-format",
    type=click.Choice(list(SUFFIXES)),
    default="default",
    help="default: .mar; zip-store: .mar, not compressed; tgz: .tar.gz; no-archive: a folder.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite an existing archive.")
@click.option("-r", "--requirements-file", type=_FILE, help="requirements.txt of the handler.")
@click.option("-c", "--config-file", type=_FILE, help="model-config.yaml.")
def archive(
    target: str, export_path: Path, archive_format: str, *, force: bool, **options: Any
) -> None:
    """Pack a model for serving: code, weights and extra files in one archive.

    TARGET is what `ferry serve` takes: FILE.py[:NAME], .onnx, .pt2, .pt or hf:NAME. Without it,
    give the flags of torch-model-archiver.
    """
    with tempfile.TemporaryDirectory(prefix="ferry-archive-") as folder:
        for recipe in _recipes(target, options, Path(folder)):
            path = export_path / f"{recipe['model_name']}{SUFFIXES[archive_format]}"
            if path.exists() and not force:
                raise click.ClickException(f"{path} already exists. Use --force to overwrite it.")
            try:
                files = _files_of(recipe)
                export_path.mkdir(parents=True, exist_ok=True)
                _write(path, archive_format, recipe, files)
            except OSError as error:
                raise click.ClickException(f"Cannot write {path}: {error}") from error
            click.echo(f"Wrote {path} with {', '.join(files) or 'no files'}.")


def _recipes(target: str, options: dict[str, Any], folder: Path) -> Iterator[Recipe]:
    """Yields a recipe for each model of the target; without a target, one from the options."""
    context = click.get_current_context()
    for parameter in context.command.params:
        is_given = bool(options.get(parameter.name or ""))
        if target and is_given and parameter.name in _NOT_WITH_TARGET:
            raise click.UsageError(f"{parameter.opts[-1]} does not go with a TARGET.")
        if not target and not is_given and parameter.name in _NEEDED:
            raise click.MissingParameter(_OR_TARGET, ctx=context, param=parameter)
    if not target:
        yield options
        return
    models = read_target(target)
    if len(models) > 1 and options["model_name"]:
        raise click.UsageError("--model-name is for one model: FILE.py:NAME picks one.")
    for model in models:
        if model.is_archive:
            raise click.UsageError(f"{model.path} is an archive already.")
        config = folder / model.name / CONFIG_FILE
        config.parent.mkdir()
        config.write_text(model.config(), encoding="utf-8")
        yield {
            **options,
            "model_name": options["model_name"] or model.name,
            "version": options["version"] or model.version,
            "handler": model.handler,
            "serialized_file": model.path if model.is_without_code else None,
            "config_file": config,
            "target": model,
        }


def _files_of(recipe: Recipe) -> dict[str, Path]:
    """Returns the files to pack: path in the archive -> source."""
    files: dict[str, Path] = {}
    for path, source in (*_sources_of(recipe), *_extra_files(recipe["extra_files"])):
        if not source.is_file():
            raise click.ClickException(
                f"{source} is a broken link, or a pipe, socket or device: only files are packed"
            )
        if not files.setdefault(path, source).samefile(source):
            raise click.ClickException(
                f"Two files would both be {path!r} in the archive: {files[path]} and {source}"
            )
    files.pop(MANIFEST_NAME, None)  # an unpacked archive has an old one; it gets a new one
    for folder in {str(folder) for path in files for folder in PurePosixPath(path).parents}:
        if folder in files:
            raise click.ClickException(f"{folder!r} would be a file and a folder in the archive")
    return files


def _sources_of(recipe: Recipe) -> Iterator[tuple[str, Path]]:
    """Yields paths in the archive and sources of all but the extra files."""
    target: ServedTarget | None = recipe.get("target")
    if target is not None:
        yield from target.sources.items()
    elif (handler := recipe["handler"]) not in BUILT_IN_HANDLERS:
        path = Path(f"{handler.partition(':')[0].removesuffix('.py')}.py")
        if not path.is_file():
            raise click.BadParameter(
                f"File {str(path)!r} does not exist, and the built-in handlers are: "
                f"{', '.join(BUILT_IN_HANDLERS)}.",
                param_hint="'--handler'",
            )
        yield path.name, path
    weights: Path | None = recipe["serialized_file"]
    data = weights and weights.with_name(f"{weights.name}.data")
    if data and data.is_file() and data.suffixes[-2:] == [".onnx", ".data"]:
        yield data.name, data
    for file in (weights, *(recipe[key] for key in _FILES)):
        if file is not None:
            yield file.name, file


def _write(path: Path, archive_format: str, recipe: Recipe, files: Mapping[str, Path]) -> None:
    # Written elsewhere and moved, so that nobody sees half an archive.
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=path.parent) as folder:
        unfinished = Path(folder) / "new" / path.name
        unfinished.parent.mkdir()
        manifest = Path(folder) / "manifest"
        manifest.write_text(_manifest_of(recipe), encoding="utf-8")
        entries = {**files, MANIFEST_NAME: manifest}
        if archive_format == "no-archive":
            for name, source in entries.items():
                (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, unfinished / name)
            if path.is_dir():  # what else lies in it stays, as with torch-model-archiver
                shutil.copytree(unfinished, path, dirs_exist_ok=True, copy_function=os.replace)
                return
        elif archive_format == "tgz":
            # In a folder of the model's name, as torch-model-archiver does.
            with tarfile.open(unfinished, "w:gz", dereference=True) as bundle:
                for name, source in entries.items():
                    bundle.add(source, f"{recipe['model_name']}/{name}")
        else:
            method = zipfile.ZIP_STORED if archive_format == "zip-store" else zipfile.ZIP_DEFLATED
            with zipfile.ZipFile(unfinished, "w", method, strict_timestamps=False) as bundle_zip:
                for name, source in entries.items():
                    bundle_zip.write(source, name)
        unfinished.replace(path)


def _manifest_of(recipe: Recipe) -> str:
    named = {key: Path(recipe[name]).name for key, name in _MANIFEST_KEYS.items() if recipe[name]}
    target: ServedTarget | None = recipe.get("target")
    if target is not None:
        named["target"] = target.text(target.path.name if target.path else "")
    manifest = {
        "createdOn": datetime.now(UTC).astimezone().strftime("%d/%m/%Y %H:%M:%S"),
        "runtime": recipe["runtime"],
        "model": named,
        "archiverVersion": importlib.metadata.version("torchferry"),
    }
    return json.dumps(manifest, indent=2)


def _extra_files(patterns: str) -> Iterator[tuple[str, Path]]:
    """Yields paths in the archive and sources: a file by its name, a folder by its content."""
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        matching = sorted(glob.glob(pattern))  # noqa: PTH207 - a pattern may be absolute
        if not matching:
            raise click.BadParameter(f"Nothing matches {pattern!r}.", param_hint="'--extra-files'")
        for path in map(Path, matching):
            for file in _files_below(path) if path.is_dir() else (path,):
                yield (file.relative_to(path).as_posix() if file != path else path.name), file


def _files_below(folder: Path, around: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yields the files that torch-model-archiver packs: behind links, too, but not some folders."""
    around = (*around, folder.resolve())
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            yield path
        elif not path.name.startswith(".") and path.name not in ("__pycache__", "__MACOSX"):
            if path.resolve() in around:
                raise click.ClickException(f"{path} is a link to a folder that it lies in")
            yield from _files_below(path, around)
