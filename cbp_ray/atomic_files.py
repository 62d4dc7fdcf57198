"""Files that appear whole or not at all."""

import os
import uuid
from pathlib import Path

TEMPORARY = ".tmp-"
"""How the name of a file begins that is not whole yet."""


def write_whole(path: Path, content: bytes, lasting: bool = True) -> None:
    """Writes a file, and its folder if there is none; whatever happens, there is either the old file or the whole new one.

    Args:
      path: the file.
      content: all of it.
      lasting: whether it must also survive that the machine dies a moment later, for which the disk has to be waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
