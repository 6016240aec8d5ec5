"""What an instance does first: its dead man's switch, then the user's own start-up text. Pure.

The switch powers the instance off, which terminates it, once the expiry in its own tag has passed. It reads the tag
through the instance's metadata service, so that a renewal, which writes the tag, needs no way into the machine, and a
deployment that has vanished altogether costs nothing for long.
"""

from __future__ import annotations

import base64

from airflow_llmsched.clouds.aws.tags import EXPIRES
from airflow_llmsched.errors import SpecError

GRACE_S = 300
"""How long after the expiry the switch waits: a late renewal, or the reaper, comes first."""
MAX_BYTES = 16_384
"""EC2's limit, before base64."""

SWITCH = f"""#!/bin/sh
# Powers this machine off when its lease has expired. Written by airflow-provider-llmsched.
imds=${{LLMSCHED_IMDS:-http://169.254.169.254}}/latest
off=${{LLMSCHED_POWER_OFF:-/usr/sbin/shutdown -h now}}
until_s=$1
while :; do
  token=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$imds/api/token")
  said=$(curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/tags/instance/{EXPIRES}")
  case $said in
    '' | *[!0-9]*) ;;
    *) until_s=$said ;;
  esac
  if [ "$(date +%s)" -gt "$((until_s + {GRACE_S}))" ]; then
    $off
    exit 0
  fi
  sleep "${{LLMSCHED_LOOK_EVERY_S:-60}}"
done
"""

_INSTALL = """#!/bin/sh
set -eu
command -v curl >/dev/null || exit 0
cat >/usr/local/sbin/llmsched-lease <<'LLMSCHED'
{switch}LLMSCHED
chmod 0755 /usr/local/sbin/llmsched-lease
cat >/etc/systemd/system/llmsched-lease.service <<'LLMSCHED'
[Unit]
Description=Power off when the lease has expired
[Service]
ExecStart=/usr/local/sbin/llmsched-lease {expires_s}
Restart=on-failure
[Install]
WantedBy=multi-user.target
LLMSCHED
systemctl daemon-reload
systemctl enable --now llmsched-lease.service
"""

_BOUNDARY = "==llmsched=="
_TYPES = (("#!", "text/x-shellscript"), ("#cloud-config", "text/cloud-config"))


def user_data(*, expires_s: str, own: str = "", has_switch: bool = True) -> str:
    """Return base64 user data: the switch, if wanted, and the user's ``own``; empty for neither.

    Raises ``SpecError`` for text that cloud-init would not understand, or that is too long.
    """
    parts = [_INSTALL.format(switch=SWITCH, expires_s=expires_s)] if has_switch else []
    text = _multipart([*parts, own]) if own and parts else own or "".join(parts)
    if own:
        _type(own)
    if len(text.encode()) > MAX_BYTES:
        raise SpecError(path="user_data", hint=f"is too long: EC2 takes {MAX_BYTES} bytes, our own part included")
    return base64.b64encode(text.encode()).decode()


def _multipart(parts: list[str]) -> str:
    """Return a MIME archive, always the same for the same parts, so that repeating a call repeats it exactly."""
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"', ""]
    for part in parts:
        lines += [f"--{_BOUNDARY}", f'Content-Type: {_type(part)}; charset="utf-8"', "", part]
    return "\n".join([*lines, f"--{_BOUNDARY}--", ""])


def _type(part: str) -> str:
    for start, kind in _TYPES:
        if part.startswith(start):
            return kind
    raise SpecError(path="user_data", hint="must begin with #! (a script) or #cloud-config")
