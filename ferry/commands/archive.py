"""`ferry archive`: packs a target of `ferry serve`, or a model as torch-model-archiver does."""

import glob
import importlib.metadata
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import click

from batching.models.spec import VERSION_PATTERN
from ferry.serving.served_targets import (
    CONFIG_FILE,
    MANIFEST_NAME,
    ServedTarget,
    read_target,
)

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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The archive's name and contents."""

    model_name: str
    version: str
    handler: str
    runtime: str
    serialized_file: Path | None
    model_file: Path | None
    requirements_file: Path | None
    config_file: Path | None
    extra_files: str
    target: ServedTarget | None = None

    def manifest(self) -> str:
        model = {
            "modelName": self.model_name,
            "serializedFile": self.serialized_file,
            "handler": self.handler,
            "modelFile": self.model_file,
            "modelVersion": self.version,
            "requirementsFile": self.requirements_file,
            "configFile": self.config_file,
        }
        named = {key: Path(value).name for key, value in model.items() if value}
        if self.target is not None:
            path = self.target.path
            named["target"] = self.target.text(path.name if path else "")
        manifest = {
            "createdOn": datetime.now(UTC).astimezone().strftime("%d/%m/%Y %H:%M:%S"),
            "runtime": self.runtime,
            "model": named,
            "archiverVersion": importlib.metadata.version("torchferry"),
        }
        return json.dumps(manifest, indent=2)

    def files(self) -> dict[str, Path]:
        """Returns each file's place in the archive, and its source.

        Raises:
            click.ClickException: a file is missing, or two would lie in the same place.
        """
        named = (self.model_file, self.serialized_file, self._handler_file())
        settings = (self.requirements_file, self.config_file)
        sources = [(file.name, file) for file in (*named, *settings) if file is not None]
        sources += self.target.sources.items() if self.target is not None else ()
        if self.serialized_file is not None and self.serialized_file.suffix == ".onnx":
            data = self.serialized_file.with_name(f"{self.serialized_file.name}.data")
            sources += [(data.name, data)] if data.is_file() else []
        files: dict[str, Path] = {}
        for place, source in (*sources, *_extra_files(self.extra_files)):
            if not source.is_file():
                raise click.ClickException(
                    f"{source} is a broken link, or a pipe, socket or device: only files are packed"
                )
            if not files.setdefault(place, source).samefile(source):
                raise click.ClickException(
                    f"Two files would both be {place!r} in the archive: {files[place]} and {source}"
                )
        files.pop(MANIFEST_NAME, None)  # of an archive that is packed anew; it gets its own
        for place in {str(folder) for one in files for folder in PurePosixPath(one).parents}:
            if place in files:
                raise click.ClickException(f"{place!r} would be a file and a folder in the archive")
        return files

    def _handler_file(self) -> Path | None:
        if self.target is not None or self.handler in BUILT_IN_HANDLERS:
            return None
        name = self.handler.partition(":")[0]
        path = Path(name if name.endswith(".py") else f"{name}.py")
        if not path.is_file():
            raise click.BadParameter(
                f"File {str(path)!r} does not exist, and the built-in handlers are: "
                f"{', '.join(BUILT_IN_HANDLERS)}.",
                param_hint="'--handler'",
            )
        return path


def _matching(
    pattern: re.Pattern[str], hint: str
) -> Callable[[click.Context, click.Parameter, str], str]:
    def check(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        if value and not pattern.fullmatch(value):
            raise click.BadParameter(f"{value!r}: {hint}")
        return value

    return check


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
    callback=_matching(
        _NAME, "use letters, digits, '_', '-' and '.', beginning with a letter or digit."
    ),
    help="Name to serve under.  [required without TARGET]",
)
@click.option(
    "-v",
    "--version",
    default="",
    callback=_matching(
        VERSION_PATTERN,
        "no server would register it. Use letters, digits, '.', '_', '+' and '-', "
        "at most 128 of them, beginning with a letter, digit or '_'.",
    ),
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
    help="More files, separated by commas; wildcards work; of a folder its content is packed.",
)
@click.option(
    "--runtime", type=click.Choice(["python", "python3"]), default="python", show_default=True
)
@click.option(
    "--export-path",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="Folder for the archive.  [default: here]",
)
@click.option(
    "--archive-format",
    type=click.Choice(list(SUFFIXES)),
    default="default",
    show_default=True,
    help="default: .mar; zip-store: .mar, not compressed; tgz: .tar.gz; no-archive: a folder.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite an existing archive.")
@click.option("-r", "--requirements-file", type=_FILE, help="requirements.txt of the handler.")
@click.option("-c", "--config-file", type=_FILE, help="model-config.yaml.")
def archive(
    target: str, export_path: Path, archive_format: str, *, force: bool, **recipe: Any
) -> None:
    """Pack a model for serving: code, weights and extra files in one archive.

    TARGET is what `ferry serve` takes: FILE.py[:NAME], .onnx, .pt2, .pt or hf:NAME. Without it,
    torch-model-archiver's flags make its archives.
    """
    with tempfile.TemporaryDirectory(prefix="ferry-archive-") as folder:
        for packed in _recipes(target, recipe, Path(folder)):
            path = export_path / f"{packed.model_name}{SUFFIXES[archive_format]}"
            if path.exists() and not force:
                raise click.ClickException(f"{path} already exists. Use --force to overwrite it.")
            try:
                files = packed.files()
                export_path.mkdir(parents=True, exist_ok=True)
                _write(path, archive_format, packed, files)
            except OSError as error:
                raise click.ClickException(f"Cannot write {path}: {error}") from error
            click.echo(f"Wrote {path} with {', '.join(files) or 'no files'}.")


def _recipes(target: str, options: dict[str, Any], folder: Path) -> Iterator[Recipe]:
    """Yields an archive's recipe for each model of the target, or the one of the options alone."""
    context = click.get_current_context()
    parameters = {one.name: one for one in context.command.params}
    wanted = () if target else ("model_name", "version", "handler")
    refused = ("handler", "serialized_file", "model_file", "config_file") if target else ()
    for name in wanted:
        if not options[name]:
            raise click.MissingParameter(ctx=context, param=parameters[name])
    for name in refused:
        if options[name]:
            raise click.UsageError(f"{parameters[name].opts[-1]} does not go with a TARGET.")
    if not target:
        yield Recipe(**options)
        return
    models = read_target(target)
    if len(models) > 1 and options["model_name"]:
        raise click.UsageError("--model-name is for one model: FILE.py:NAME picks one.")
    for model in models:
        yield _recipe_of(model, options, folder / model.name)


def _recipe_of(model: ServedTarget, options: dict[str, Any], folder: Path) -> Recipe:
    if model.is_archive:
        raise click.UsageError(f"{model.path} is an archive already.")
    folder.mkdir()
    config = folder / CONFIG_FILE
    config.write_text(model.config(), encoding="utf-8")
    own = {"model_name": model.name, "version": model.version}
    named = {name: options[name] or value for name, value in own.items()}
    about = {"handler": model.handler, "config_file": config, "target": model}
    weights = {"serialized_file": model.path} if model.is_without_code else {}
    return Recipe(**{**options, **named, **about, **weights})


def _write(target: Path, archive_format: str, recipe: Recipe, files: Mapping[str, Path]) -> None:
    manifest = recipe.manifest()
    # Written elsewhere and moved: a target is whole, or it is the one of before.
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=target.parent) as folder:
        unfinished = Path(folder) / target.name
        if archive_format == "no-archive":
            for place, source in files.items():
                (unfinished / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, unfinished / place)
            (unfinished / MANIFEST_NAME).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / MANIFEST_NAME).write_text(manifest, encoding="utf-8")
            if target.is_dir():  # what else lies in it stays, as with torch-model-archiver
                shutil.copytree(unfinished, target, dirs_exist_ok=True, copy_function=os.replace)
                return
        elif archive_format == "tgz":
            # In a folder of the model's name, as torch-model-archiver does.
            with tarfile.open(unfinished, "w:gz", dereference=True) as bundle:
                for place, source in files.items():
                    bundle.add(source, f"{recipe.model_name}/{place}")
                entry = tarfile.TarInfo(f"{recipe.model_name}/{MANIFEST_NAME}")
                entry.size = len(manifest.encode())
                bundle.addfile(entry, io.BytesIO(manifest.encode()))
        else:
            method = zipfile.ZIP_STORED if archive_format == "zip-store" else zipfile.ZIP_DEFLATED
            with zipfile.ZipFile(unfinished, "w", method, strict_timestamps=False) as bundle_zip:
                for place, source in files.items():
                    bundle_zip.write(source, place)
                bundle_zip.writestr(MANIFEST_NAME, manifest)
        unfinished.replace(target)


def _extra_files(patterns: str) -> Iterator[tuple[str, Path]]:
    """Yields place and source: a file under its base name, a folder by its content."""
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        found = sorted(glob.glob(pattern))  # noqa: PTH207 - a pattern may be absolute
        if not found:
            raise click.BadParameter(f"Nothing matches {pattern!r}.", param_hint="'--extra-files'")
        for path in map(Path, found):
            if path.is_dir():
                for file in _files_below(path):
                    yield file.relative_to(path).as_posix(), file
            else:
                yield path.name, path


def _files_below(folder: Path, around: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yields what torch-model-archiver packs, which follows links and leaves some folders out.

    Raises:
        click.ClickException: a link leads to a folder around it.
    """
    around = (*around, folder.resolve())
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            yield path
        elif not path.name.startswith(".") and path.name not in ("__pycache__", "__MACOSX"):
            if path.resolve() in around:
                raise click.ClickException(f"{path} is a link to a folder that it lies in")
            yield from _files_below(path, around)
