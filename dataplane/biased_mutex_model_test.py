#!/usr/bin/env python3
"""biased_mutex.pml is correct in every interleaving; each break is found."""

import sys
import unittest

sys.path.insert(0, "dataplane/testing")

from model_check import ModelTest  # noqa: E402


class BiasedMutexModelTest(ModelTest):

    def test_one_other(self):
        self.assert_holds("OTHERS=1", "TIMES=3", "HOME_TIMES=10")

    def test_two_others(self):
        self.assert_holds("OTHERS=2", "TIMES=2", "HOME_TIMES=8")

    def test_no_second_look_is_found(self):
        self.assert_found("assertion violated", "BREAK=1")

    def test_no_fence_of_who_takes_the_bias_away_is_found(self):
        self.assert_found("assertion violated", "BREAK=2")

    def test_leaving_without_waking_is_found(self):
        self.assert_found("invalid end state", "BREAK=3")

    def test_waking_before_it_is_seen_to_have_left_is_found(self):
        self.assert_found("invalid end state", "BREAK=4")

    def test_not_waiting_for_the_home_is_found(self):
        self.assert_found("assertion violated", "BREAK=5")

    def test_saying_how_it_had_it_after_leaving_is_found(self):
        self.assert_found("assertion violated", "BREAK=6")


if __name__ == "__main__":
    unittest.main()
