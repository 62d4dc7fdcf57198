"""How the command line says that its input is bad: one line with the place, the rule, the value and the fix."""

import errno
from collections.abc import Sequence
from typing import Any

import click

from cbp_ray.errors import ClusterError, InputError

LONGEST_LINE = 1500
"""Most characters of a message."""


class Choice(click.Choice[str]):
    """A choice whose error says the rule, the value and the nearest right one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        # Here, because Pydantic would slow down every `--help`.
        from cbp_ray.validation import suggest

        return f"must be one of {', '.join(self.choices)}, got {value!r}; {suggest(str(value), self.choices)}"


class Failed(click.ClickException):
    """One line and exit code 1: the input is good, but what it asked for went wrong."""


class Program(click.Group):
    """A group that lists its commands in the order of a day's work and passes on our own errors with their place."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise click.ClickException(f"{ctx.command_path} {ctx.invoked_subcommand}: {error}") from error
        except ClusterError as error:
            raise Failed(f"{ctx.command_path} {ctx.invoked_subcommand}: {error}") from error
        except click.BadOptionUsage as error:
            # Click does not say which command the option belongs to.
            where = f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise click.ClickException(f"{where}: {error.message.rstrip('.')}; see: {where} --help") from error
        except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            where = f"{ctx.command_path} {ctx.invoked_subcommand}"
            name = "a file" if error.filename is None else error.filename
            raise click.ClickException(f"{where}: {name}: must be of another kind ({error.strerror})") from error
        except OSError as error:
            # What has no number is no trouble with a file: Ray's time-outs, say. A pipe that nobody reads is click's business.
            if error.errno in (None, errno.EPIPE):
                raise
            where = f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise Failed(f"{where}: a file can't be written or read ({error})") from error
        except KeyboardInterrupt:
            # Click would put a blank line on stderr first.
            raise click.Abort from None


def describe(error: click.ClickException) -> str:
    """Say where the input is wrong, the rule, the value and the fix."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return error.format_message()
    where, known = error.ctx.command_path, error.ctx.command
    help_hint = f"see: {where} --help"
    match error:
        case click.exceptions.NoSuchCommand() if isinstance(known, click.Group):
            fix = _did_you_mean(error.possibilities) or f"use one of {', '.join(known.list_commands(error.ctx))}"
            return f"{where}: unknown command {error.command_name!r}; {fix}"
        case click.NoSuchOption():
            return f"{where}: unknown option {error.option_name}; {_did_you_mean(error.possibilities) or help_hint}"
        case click.MissingParameter() if error.param is not None:
            return f"{where}: {_name(error.param)}: is required, got nothing; {help_hint}"
        case click.BadParameter() if error.param is not None:
            fix = "" if error.message.endswith("?") else f"; {help_hint}"
            return f"{where}: {_name(error.param)}: {error.message.rstrip('.')}{fix}"
    return f"{where}: {error.format_message().rstrip('.')}; {help_hint}"


def one_line(message: str) -> str:
    """A message in one line that people can read: where it quotes a value without end, the middle is left out."""
    text = " ".join(message.split())
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE // 2]} … {text[-LONGEST_LINE // 2 :]}"


def _did_you_mean(possibilities: Sequence[str] | None) -> str:
    return f"did you mean {' or '.join(possibilities)}?" if possibilities else ""


def _name(parameter: click.Parameter) -> str:
    return parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
