"""Turns what a command declares into options of typer, each with a name for its value.

A parameter is an option, or a dataclass whose fields are options: `grace.configs.options` says how
to declare one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import GenericAlias, NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from grace.configs.errors import InputError
from grace.configs.options import Argument, Option, declaration
from grace.configs.regular_files import require_new

VALUES = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Declared:
    """An option as typer shows it, and how the text that typer read becomes the field's value."""

    shown: Parameter
    value: Callable[[Any], Any]


def as_options(command: Command, **defaults: object) -> Command:
    """Return the command with the fields of the dataclasses that it takes as its options.

    Required options come first. `defaults` replace those of the fields.
    """
    options: dict[str, Declared] = {}
    held: dict[str, tuple[Any, dict[str, Declared]]] = {}
    for name, each in _declared(command, {}).items():
        section: Any = each.shown.annotation
        if get_origin(section) is not Annotated:
            held[name] = section, _declared(section, defaults)
            options |= held[name][1]
        else:
            options[name] = each

    @wraps(command)
    def run(**given: Any) -> None:
        values = {name: options[name].value(value) for name, value in given.items()}
        sections = {
            name: section(**{field: values.pop(field) for field in fields})
            for name, (section, fields) in held.items()
        }
        command(**sections, **values)

    shown = [each.shown for each in options.values()]
    shown.sort(key=lambda option: option.default is not Parameter.empty)
    run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in shown}
    return run


def _declared(source: Callable[..., Any], defaults: Mapping[str, object]) -> dict[str, Declared]:
    hints = get_type_hints(source, include_extras=True)
    return {
        name: _option(each.replace(default=defaults.get(name, each.default)), hints[name])
        for name, each in signature(source).parameters.items()
    }


def _option(parameter: Parameter, hint: Any) -> Declared:
    if get_origin(hint) is not Annotated:  # a dataclass
        return Declared(parameter.replace(annotation=hint), _as_it_is)
    type_, fact = declaration(hint)
    type_, parameter, value = _in_typers_types(type_, parameter, fact)
    made: Callable[..., Any] = typer.Option
    named = (fact.name,) if fact.name else ()
    metavar = fact.value or VALUES.get(_plain_type(type_))
    if isinstance(fact, Argument):
        made, metavar = typer.Argument, fact.value or parameter.name.upper()
    elif parameter.default is False and not named:
        named = (_name(parameter),)  # a switch that is off by default has no form to turn it off
    option = made(
        *named,
        help=fact.words,
        metavar=metavar,
        min=fact.least,
        max=fact.most,
        readable=False,  # the command reports a path that cannot be read, without a usage box
    )
    shown = parameter.replace(annotation=Annotated[type_, option], kind=Parameter.KEYWORD_ONLY)
    return Declared(shown, require_new if fact.is_new else value)


def _in_typers_types(
    type_: Any, parameter: Parameter, fact: Option
) -> tuple[Any, Parameter, Callable[[Any], Any]]:
    """Show numbers with commas as one text, and a tuple of others as a repeatable option."""
    default = parameter.default
    name = fact.name or _name(parameter)
    if fact.commas is not None:
        if isinstance(default, tuple):
            parameter = parameter.replace(default=",".join(map(str, default)) or None)
        shown = str if default is Parameter.empty else str | None
        return shown, parameter, lambda text: _numbers(text, name, fact, default)
    if get_origin(type_) is Literal:
        return str, parameter, lambda given: _chosen([given], name, type_)[0]
    if get_origin(type_) is tuple:
        item = get_args(type_)[0]
        several = GenericAlias(list, (str if get_origin(item) is Literal else item,))
        parameter = parameter.replace(default=None)
        return several | None, parameter, lambda given: _chosen(given or (), name, item)
    return type_, parameter, _as_it_is


def _name(parameter: Parameter) -> str:
    return f"--{parameter.name.replace('_', '-')}"


def _numbers(
    text: str | None, option: str, fact: Option, default: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Return the comma-separated numbers of an option, or its default if it is not given."""
    if text is None:
        return default
    try:
        numbers = tuple(int(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or (fact.least is not None and min(numbers) < fact.least):
        least = "" if fact.least is None else f" of {fact.least} or more"
        fault = f"expected numbers{least} such as {fact.commas}, got {text!r}"
        raise typer.BadParameter(fault, param_hint=option)
    return numbers


def _chosen(given: Sequence[Any], option: str, type_: Any) -> tuple[Any, ...]:
    for value in given:
        if get_origin(type_) is Literal and value not in get_args(type_):
            raise InputError(f"{option} {value}: choose from {', '.join(get_args(type_))}")
    return tuple(given)


def _as_it_is(value: Any) -> Any:
    return value


def _plain_type(hint: Any) -> Any:
    """Return the type of one value: that of `list[int] | None` is int."""
    of = [each for each in get_args(hint) if each is not NoneType]
    return _plain_type(of[0]) if of else hint
