"""`python -m demo [--mail DIR] [--cluster current]`: from `kubectl apply` to delivered mail.

Brings the local stack up, or uses the cluster of kubectl's current context; installs the operator,
applies a QueueCluster and a MailQueue, sends mail by SMTP through the intake's Service, shows it
waiting in the queue, lets the workers deliver it to a sink, and prints what became of each mail.
All servers stay up for a closer look; `make clean` removes those of this machine. Ctrl-C removes
what the demo started.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import stack
from demo.current_cluster import CurrentCluster
from demo.local_cluster import LocalCluster
from demo.run import Demo, DemoFailed, Target
from demo.sample_mails import SAMPLES, read_mails
from support.installation import ROOT
from support.kubectl import KubectlFailed

LOGS = ROOT / "build" / "demo"


def main() -> int:
    """Run the demo; returns 0 only when every mail accepted was delivered once."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument("--mail", type=Path, default=SAMPLES, help="a folder of .eml files")
    parser.add_argument("--cluster", choices=("local", "current"), default="local")
    parser.add_argument("--namespace", default="postroad-demo", help="of a current cluster")
    parser.add_argument("--image", default="", help="postroad's, which a current cluster can pull")
    parser.add_argument("--confirm", default="", help="the context of a current cluster")
    options = parser.parse_args()
    target: Target | None = None
    demo: Demo | None = None
    try:
        mails = read_mails(options.mail)
        if not mails:
            raise DemoFailed(f"{options.mail} holds no .eml files: give a folder of mails by MAIL=")
        if options.cluster == "current":
            target = CurrentCluster(options.namespace, options.image, options.confirm)
        else:
            target = LocalCluster(LOGS)
        demo = Demo(target, mails, LOGS)
        summary = demo.run()
        demo.show(summary)
        return 0 if summary.is_good else 1
    except (DemoFailed, stack.StackError, KubectlFailed, subprocess.TimeoutExpired) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if demo:
            demo.clean_up()
        return 130
    finally:
        if target:
            target.progress.close()


if __name__ == "__main__":
    sys.exit(main())
