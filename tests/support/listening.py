"""Which addresses processes listen on, as the kernel says."""

import os
import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

LISTEN = "0A"


class Listener(NamedTuple):
    """A process that waits for connections."""

    address: str
    port: int
    pid: int

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        address = ip_address(self.address)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback


def listeners(pids: Iterable[int]) -> list[Listener]:
    """What some processes listen on over TCP."""
    owners: dict[str, int] = {}
    for pid in pids:
        try:
            links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:  # it has ended
            continue
        owners |= {link.removeprefix("socket:[").removesuffix("]"): pid for link in links if link.startswith("socket:[")}
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in owners:
                host, port = fields[1].split(":")
                words = bytes.fromhex(host)  # of four bytes each, the last one first
                raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                found.append(Listener(socket.inet_ntop(family, raw), int(port, 16), owners[fields[9]]))
    return found
