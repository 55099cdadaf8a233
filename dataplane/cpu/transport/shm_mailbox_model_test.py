#!/usr/bin/env python3
"""shm_mailbox.pml holds in every interleaving, and spin finds each break."""

import sys
import unittest

sys.path.insert(0, "dataplane/testing")

from model_check import ModelTest, few_or_full  # noqa: E402


class MailModelTest(ModelTest):

    def test_one_who_waits(self):
        self.assert_holds("WAITERS=1", "MESSAGES=5")

    def test_several_who_wait(self):
        self.assert_holds("WAITERS=2", few_or_full("MESSAGES", 2, 3))

    def assert_sleeps_for_ever(self, number, *defines):
        self.assert_found("invalid end state", f"BREAK={number}", *defines)

    def test_ringing_before_the_message_is_out_is_found(self):
        self.assert_sleeps_for_ever(1)

    def test_wanting_after_the_look_is_found(self):
        self.assert_sleeps_for_ever(2)

    def test_no_look_behind_oneself_is_found(self):
        self.assert_sleeps_for_ever(3)

    def test_sleeping_after_the_last_look_is_found(self):
        self.assert_sleeps_for_ever(4)

    def test_a_start_that_is_not_counted_is_found(self):
        self.assert_sleeps_for_ever(5)

    def test_a_start_that_wakes_nobody_is_found(self):
        self.assert_sleeps_for_ever(6)

    def test_an_end_left_to_nobody_is_found(self):
        # The completion is left to the other waiter.
        self.assert_sleeps_for_ever(7, "MESSAGES=2")


if __name__ == "__main__":
    unittest.main()
