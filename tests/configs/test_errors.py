"""The exception tree: its drawing is true, and errors open with their place."""

from grace.configs import errors


def test_the_drawing_names_every_error_and_its_exit_code() -> None:
    drawn = {
        line.split()[0]: int(line.split()[-1])
        for line in (text.lstrip("│├└─ ") for text in (errors.__doc__ or "").splitlines()[2:])
        if line.strip() and line.split()[-1].isdigit()
    }
    leaves = {
        name: cls.exit_code
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.GraceError) and name != "GraceError"
    }
    assert drawn == leaves
