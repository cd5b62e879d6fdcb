# SPDX-License-Identifier: Apache-2.0
"""ncclsvc-ctl against a daemon with a straggler. $NCCLSVCD and $NCCLSVC_CTL name the programs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

import ncclsvc_client as svc
from test_client import WAIT, Daemon, eventually


class CtlTest(unittest.TestCase):
    """Rank 0 of two waits in an AllReduce; rank 1 is alive and has not submitted."""

    def setUp(self):
        self.daemon = Daemon()
        self.first = svc.Session(self.daemon.path, name="eager")
        self.second = svc.Session(self.daemon.path, name="late")
        region = svc.Region(4096)
        self.first.add_region(region)
        region.close()
        comm_id = os.urandom(128)
        joining = self.first.send(svc.JOIN, svc.join_request(comm_id, 2, 0, -1, 0, 0))
        self.comm1 = self.second.join(comm_id, 2, 1)
        self.comm0 = svc.Comm(self.first.reply(joining)[0])
        self.request_id = self.first.submit(self.comm0, svc.ALL_REDUCE, 100, svc.FLOAT32, svc.MAX,
                                        (region.id, 0), (region.id, 0))
        eventually(self.second.tasks, "task")

    def tearDown(self):
        self.first.close()
        self.second.close()
        eventually(lambda: self.daemon.open_fds() <= self.daemon.fds, "end to the open fds")
        code, log = self.daemon.stop()
        self.assertEqual(code, 0, log)

    def ctl(self, *args, code=0, path=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("NCCLSVC_SOCKET")}
        done = subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", path or self.daemon.path, *args],
                              env=env, capture_output=True, text=True, timeout=WAIT, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def json(self, *args, code=0):
        done = self.ctl("--json", *args, code=code)
        self.assertEqual(done.stdout.count("\n"), 1)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["schema"], 1)
        self.assertEqual(answer["command"], args[0])
        return answer

    def fails(self, session, request_id, result):
        with self.assertRaises(svc.ServiceError) as caught:
            session.wait(request_id)
        self.assertEqual(caught.exception.result, result)

    def test_tasks(self):
        answer = self.json("tasks")
        self.assertEqual(answer["total"], 1)
        (task,) = answer["tasks"]
        expected = {
            "state": "waiting-peers", "comm": self.comm0.uid, "seq": 0, "op": "AllReduce",
            "type": "float32", "redop": "max", "count": 100, "bytes": 400, "rank": 0, "nranks": 2,
            "peer": None, "pid": os.getpid(), "session": self.first.id, "group": None,
            "waits_for": [1], "waits_count": 1,
        }
        self.assertEqual({key: task[key] for key in expected}, expected)
        self.assertGreater(task["age_ns"], 0)
        text = self.ctl("tasks").stdout
        for word in ("waiting-peers", "AllReduce", "float32", "max", "400", str(os.getpid())):
            self.assertIn(word, text)

    def test_filters(self):
        for args, total in ((("--rank", "0"), 1), (("--rank", "1"), 0),
                            (("--state", "queued"), 0), (("--state", "waiting-peers"), 1),
                            (("--comm", str(self.comm0.uid)), 1), (("--pid", "1"), 0),
                            (("--stuck", "3600"), 0), (("--stuck", "0"), 1)):
            self.assertEqual(self.json("tasks", *args)["total"], total, args)

    def test_jobs(self):
        """ncclsvc-ctl is a session itself, and takes its job from the environment like any client."""
        os.environ["NCCLSVC_JOB"] = "night run 7"
        self.addCleanup(os.environ.pop, "NCCLSVC_JOB")
        (own,) = self.json("sessions", "--job", "night*")["sessions"]
        self.assertEqual((own["name"], own["job"]), ("ncclsvc-ctl", "night run 7"))
        self.assertEqual(self.json("sessions", "--job", "night")["sessions"], [])
        self.assertEqual(self.json("comms", "--job", "night*")["comms"], [])
        self.assertEqual(self.json("tasks", "--job", "night*")["total"], 0)
        # The other sessions name no job: theirs is their cgroup, if the daemon could read it.
        cgroup = next(s["cgroup"] for s in self.json("sessions")["sessions"] if s["name"] == "eager")
        self.assertEqual(own["cgroup"], cgroup)
        (comm,) = self.json("comms", "--comm", str(self.comm0.uid))["comms"]
        self.assertEqual(comm["job"], cgroup)
        self.assertIn("night run 7", self.ctl("sessions").stdout)

    def test_why_names_the_straggler(self):
        answer = self.json("why", "--after", "0", code=3)
        self.assertTrue(answer["stuck"])
        (finding,) = answer["findings"]
        self.assertEqual((finding["cause"], finding["op"], finding["seq"]),
                         ("missing", "AllReduce", 0))
        self.assertEqual(finding["waiting_ranks"], [0])
        (culprit,) = finding["culprits"]
        self.assertEqual((culprit["rank"], culprit["pid"], culprit["session"], culprit["name"]),
                         (1, os.getpid(), self.second.id, "late"))
        text = self.ctl("why", "--after", "0", code=3).stdout
        self.assertIn("rank 1", text)
        self.assertIn(str(os.getpid()), text)
        self.assertFalse(self.json("why", "--after", "3600")["stuck"])
        # Once the straggler has submitted, nothing is stuck.
        late = self.second.add_region(svc.Region(4096))
        self.second.all_reduce(self.comm1, (late.id, 0), (late.id, 0), 100, svc.FLOAT32, svc.MAX)
        self.first.wait(self.request_id)
        self.assertFalse(self.json("why", "--after", "0")["stuck"])
        late.close()

    def test_why_tells_stuck_failed_and_well_apart(self):
        answer = self.json("why", "--after", "0", code=3)
        self.assertEqual((answer["node"], answer["host"]), (0, os.uname().nodename))
        (culprit,) = answer["findings"][0]["culprits"]
        self.assertEqual((culprit["cause"], culprit["first"]), ("missing", True))
        self.assertIn(culprit["process"]["state"], ("running", "sleeping"))
        self.assertIn(f"--pid {os.getpid()}", culprit["next"])
        self.assertFalse(answer["failed_lately"])
        self.assertIsNone(answer["last_failure"])
        self.json("why", "--after", "3600", code=0)
        # A lost member is a failure. The communicator ends when both members have gone.
        self.second.close()
        with self.assertRaises(svc.ServiceError):
            self.first.wait(self.request_id)
        self.first.close()
        eventually(lambda: not self.json_of_any_code("why")["stuck"], "end of the communicator")
        answer = self.json("why", code=6)
        self.assertTrue(answer["failed_lately"])
        self.assertEqual(answer["last_failure"]["result"], "PEER_GONE")
        self.assertIn("Failed ", self.ctl("why", code=6).stdout)

    def json_of_any_code(self, *args):
        return json.loads(subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", self.daemon.path, "--json", *args],
                                         stdout=subprocess.PIPE, timeout=WAIT, check=False).stdout)

    @unittest.skipUnless(shutil.which("jq"), "there is no jq")
    def test_the_lines_of_the_manual(self):
        """Every jq command of ncclsvc-ctl(1) prints the expected output."""
        with open(os.path.join(os.path.dirname(__file__), "../../client/ctl/ncclsvc-ctl.1.scd"), encoding="utf-8") as file:
            filters = re.findall(r"^ncclsvc-ctl why --json \| jq (-\w) '(.*)'$", file.read(), re.M)
        answer = self.ctl("why", "--json", "--after", "0", code=3).stdout
        printed = [subprocess.run(["jq", option, program], input=answer, capture_output=True, text=True, check=False)
                   for option, program in filters]
        self.assertEqual(len(printed), 3)
        self.assertRegex(printed[0].stdout, rf"^{os.getpid()} missing (running|sleeping)\n$")
        self.assertEqual(printed[1].stdout, json.loads(answer)["findings"][0]["culprits"][0]["next"] + "\n")
        self.assertEqual((printed[2].stdout, printed[2].returncode), ("false\n", 1))

    def test_a_stopped_daemon_is_named(self):
        pid = self.daemon.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            done = self.ctl("status", code=4)
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertIn(f"ncclsvcd (pid {pid}) has not answered for 2.", done.stderr)
        self.assertIn(f"is stopped by a signal (SIGSTOP or Ctrl-Z). Next: `kill -CONT {pid}`.", done.stderr)
        self.ctl("status")

    def test_cancel_task(self):
        (task,) = self.json("tasks")["tasks"]
        answer = self.json("cancel", "task", str(task["task"]))
        self.assertEqual((answer["target"], answer["id"], answer["cancelled"]),
                         ("task", task["task"], 1))
        self.fails(self.first, self.request_id, "CANCELLED")
        # The task is kept until rank 1 has matched it, and is shown as failed.
        self.assertEqual([t["state"] for t in self.json("tasks")["tasks"]], ["failed"])
        self.ctl("cancel", "task", "999999999", code=5)

    def test_cancel_comm_and_session(self):
        answer = self.json("cancel", "comm", str(self.comm0.uid))
        self.assertEqual(answer["cancelled"], 1)
        self.fails(self.first, self.request_id, "CANCELLED")
        self.ctl("cancel", "session", str(self.second.id))
        with self.assertRaises(svc.ServiceError) as caught:
            while True:
                self.second.receive()
        self.assertEqual(caught.exception.result, "DAEMON_LOST")
        sessions = eventually(
            lambda: [s["session"] for s in self.json("sessions")["sessions"]
                     if s["name"] in ("eager", "late")] == [self.first.id], "end of the session")
        self.assertTrue(sessions)
        self.ctl("cancel", "session", "999999999", code=5)
        self.ctl("cancel", "comm", "999999999", code=5)

    def test_the_other_views(self):
        status = self.json("status")["status"]
        self.assertEqual((status["pid"], status["tasks_pending"]), (self.daemon.process.pid, 1))
        sessions = {s["name"]: s for s in self.json("sessions")["sessions"]}
        self.assertEqual(sessions["eager"]["submitted"], 1)
        self.assertEqual(sessions["late"]["submitted"], 0)
        self.assertEqual(sessions["eager"]["ring_entries"], 0)
        self.assertEqual({s["protocol"] for s in sessions.values()}, {1})
        (comm,) = [c for c in self.json("comms")["comms"] if c["comm"] == self.comm0.uid]
        self.assertEqual((comm["state"], comm["nranks"], comm["joined"], comm["pending"]),
                         ("ready", 2, 2, 1))
        self.assertEqual([m["rank"] for m in comm["members"]], [0, 1])
        memory = self.json("memory")
        self.assertEqual(memory["bytes"], 4096)
        self.assertEqual(memory["regions"][0]["session"], self.first.id)
        for view in ("status", "sessions", "comms", "memory"):
            self.assertTrue(self.ctl(view).stdout)

    def test_exit_codes(self):
        self.ctl("no-such-command", code=2)
        self.ctl("tasks", "--no-such-option", code=2)
        self.assertIn("ambiguous", self.ctl("tasks", "--co", "1", code=2).stderr)
        nowhere = self.ctl("status", code=4, path=self.daemon.path + "-not")
        self.assertEqual(nowhere.stdout, "")
        self.assertIn(self.daemon.path + "-not", nowhere.stderr)
        self.assertIn("is not a socket", self.ctl("status", code=4, path=__file__).stderr)
        self.assertIn("longer than 107", self.ctl("status", code=1, path="/" + "x" * 107).stderr)

    def test_groups_need_no_daemon(self):
        def groups(*args, code=0):
            return self.ctl("groups", *args, code=code, path="/nonexistent")

        size = ("--world", "24", "--local-size", "4", "--data", "2", "--horizontal", "3",
                "--pipeline", "4")
        done = groups("--json", *size, "--rank", "17")
        self.assertEqual(done.stdout.count("\n"), 1)
        self.assertEqual(json.loads(done.stdout), {
            "rank": 17,
            "data": {"id": 8, "index": 1, "ranks": [14, 17]},
            "horizontal": {"id": 5, "index": 2, "ranks": [15, 16, 17]},
            "pipeline": {"id": 5, "index": 2, "ranks": [5, 11, 17, 23]},
            "node_local": {"id": 14, "index": 0, "ranks": [17]},
            "cross_node": {"id": 17, "index": 0, "ranks": [17]}})
        ranks = json.loads(groups("--json", *size).stdout)
        self.assertEqual([r["rank"] for r in ranks], list(range(24)))
        self.assertEqual(ranks[17], json.loads(done.stdout))
        for kind in ("data", "horizontal", "pipeline", "node_local", "cross_node"):
            for r in ranks:
                self.assertEqual(r[kind]["ranks"][r[kind]["index"]], r["rank"])
            self.assertEqual({r[kind]["id"] for r in ranks}, set(range(len(
                {tuple(r[kind]["ranks"]) for r in ranks}))))
        table = groups(*size).stdout.splitlines()
        self.assertEqual(len(table), 25)
        self.assertIn("5/2 [15-17]", table[18])
        self.assertIn("5/2 [5,11,17,23]", table[18])
        for args, why in ((("--world", "64", "--data", "65"), "data is 65"),
                          (("--world", "64", "--data", "16", "--horizontal", "5"), "horizontal is 5"),
                          (("--world", "64", "--data", "8", "--horizontal", "4", "--pipeline", "1"),
                           "8 x 4 x 1"),
                          (("--world", "0"), "world is 0"),
                          (("--world", "4", "--rank", "4"), "rank is 4"),
                          (("--world", "x"), "--world"),
                          (("--data", "4"), "--world")):
            done = groups(*args, code=2)
            self.assertIn(why, done.stderr)
            self.assertEqual(done.stdout, "")
        self.ctl("tasks", "--world", "4", code=2)

    def test_watch_ends_after_its_frames(self):
        frames = self.ctl("--json", "watch", "-n", "0.05", "--count", "3", "tasks").stdout.splitlines()
        self.assertEqual([json.loads(f)["total"] for f in frames], [1, 1, 1])


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
