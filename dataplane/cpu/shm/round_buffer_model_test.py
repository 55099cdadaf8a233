#!/usr/bin/env python3
"""round_buffer.pml holds in every interleaving, and spin finds each break."""

import sys
import unittest

sys.path.insert(0, "dataplane/testing")

from model_check import ModelTest, few_or_full, rounds  # noqa: E402


class RoundBufferModelTest(ModelTest):

    def test_two_ranks(self):
        self.assert_holds("RANKS=2", "ROUNDS=6")

    def test_two_ranks_one_further_ahead(self):
        self.assert_holds("RANKS=2", "ROUNDS=6", "NOTES=3")

    def test_a_processor_that_holds_back_two_rounds(self):
        self.assert_holds("RANKS=2", "ROUNDS=6", "HOLDS=2")

    def test_a_ring(self):
        # Three rounds wrap around a ring of 3.
        self.assert_holds("RANKS=2", rounds(3, 4), "NOTES=4",
                          few_or_full("RING", 3, 5))

    def test_a_ring_of_processors_that_hold_nothing_back(self):
        self.assert_holds("RANKS=2", rounds(3, 5), "NOTES=4",
                          few_or_full("RING", 3, 5), "HOLDS=0")

    def test_three_ranks(self):
        self.assert_holds("RANKS=3", rounds(1, 2))

    def test_three_ranks_of_processors_that_hold_nothing_back(self):
        self.assert_holds("RANKS=3", rounds(1, 3), "HOLDS=0")

    def test_ranks_that_leave(self):
        self.assert_holds("RANKS=2", "ROUNDS=4", "LEAVES=1")

    def test_one_of_three_ranks_that_leaves(self):
        self.assert_holds("RANKS=3", "ROUNDS=1", "LEAVES=1",
                          few_or_full("HOLDS", 0, 1))

    def test_ranks_that_are_killed_and_the_others_woken(self):
        self.assert_holds("RANKS=2", rounds(2, 4), "DIES=1")

    def test_ranks_that_leave_or_are_killed(self):
        self.assert_holds("RANKS=2", rounds(2, 3), "LEAVES=1", "DIES=1",
                          few_or_full("HOLDS", 0, 1))

    def test_saying_so_after_the_last_look_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "BREAK=1")

    def test_writing_without_waiting_is_found(self):
        self.assert_found("assertion violated", "RANKS=2", "BREAK=2")

    def test_the_number_before_the_contents_is_found(self):
        self.assert_found("assertion violated", "RANKS=2", "BREAK=3")

    def test_no_look_after_the_nap_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "BREAK=4")
        # That check is needed only if stores are held back.
        self.assert_holds("RANKS=2", "BREAK=4", "HOLDS=0")

    def test_a_note_written_too_early_is_found(self):
        self.assert_found("assertion violated", "RANKS=2", "ROUNDS=5",
                          "BREAK=5")

    def test_a_ring_written_too_early_is_found(self):
        self.assert_found("assertion violated", "RANKS=2", "ROUNDS=3",
                          "NOTES=4", "RING=3", "HOLDS=0", "BREAK=6")

    def test_being_awake_between_nap_and_sleep_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "BREAK=7")

    def test_reading_rings_after_the_last_look_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "BREAK=8")

    def test_a_nap_that_a_signal_ends_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "BREAK=9")

    def test_being_counted_after_the_last_look_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "BREAK=10")

    def test_looking_late_whether_the_peer_has_left_is_found(self):
        self.assert_found("assertion violated", "RANKS=2", "LEAVES=1",
                          "BREAK=11")

    def test_saying_late_that_it_failed_is_found(self):
        self.assert_found("assertion violated", "RANKS=2", "LEAVES=1",
                          "BREAK=12")

    def test_leaving_without_a_ring_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "LEAVES=1",
                          "BREAK=13")

    def test_ringing_before_it_has_left_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "LEAVES=1",
                          "BREAK=14")

    def test_ringing_before_waking_is_found(self):
        self.assert_found("invalid end state", "RANKS=2", "DIES=1", "BREAK=15")


if __name__ == "__main__":
    unittest.main()
