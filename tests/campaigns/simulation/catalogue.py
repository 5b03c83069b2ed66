"""The fault catalogue: the faults that a producer can encounter, by id, and the test for each.

Most are scenarios of the simulation (`@scenario("C12", ...)`). The others need something that a simulation lacks -
real sockets, hand-made bytes, processes, a real Kafka cluster, two event loops - and are listed here with the test
that plays them, or with a description of the missing test."""

from __future__ import annotations

COUNTS = {"C": 27, "P": 24, "M": 25, "B": 20, "S": 18, "T": 32, "X": 15, "A": 28, "Z": 13}
"""Connections, protocol, metadata, broker, sequences, transactions, security (X), application, resources (Z)."""

IDS = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]

ELSEWHERE: dict[str, tuple[str, str]] = {
    # connections
    "C6": ("network/test_brokers", "test_the_name_is_resolved_at_each_attempt"),
    "C21": ("network/test_request_stream", "test_an_idle_connection_closes_without_error"),
    "C22": (
        "end_to_end/test_process_faults",
        "test_a_client_without_file_descriptors_says_so_and_recovers_when_it_has_some_again",
    ),
    "C23": ("network/test_bad_addresses", "test_the_port_of_a_web_server_is_named_immediately"),
    "C24": ("network/test_bad_addresses", "test_a_tls_port_is_named_immediately"),
    # frames and protocol: bytes that no broker of ours would send
    "P2": ("network/test_request_stream", "test_swapped_answers_close_the_connection"),
    "P3": ("network/test_request_stream", "test_a_repeated_response_closes_the_connection"),
    "P4": ("network/test_request_stream", "test_a_repeated_response_closes_the_connection"),
    "P5": (
        "network/test_request_stream",
        "test_every_truncated_answer_in_a_complete_frame_closes_the_connection",
    ),
    "P7": (
        "network/test_request_stream",
        "test_a_frame_beyond_the_limit_closes_the_connection_before_it_is_read",
    ),
    "P8": ("network/test_request_stream", "test_bytes_after_a_response_close_the_connection"),
    "P9": ("protocol/test_hostile", "test_a_count_that_exceeds_the_frame_allocates_nothing"),
    "P10": ("protocol/test_hostile", "test_malformed_tags_are_refused"),
    "P11": ("protocol/test_hostile", "test_random_bytes_raise_nothing_but_protocol_error"),
    "P12": ("protocol/test_hostile", "test_tagged_field_may_be_absent_or_unknown"),
    "P14": ("protocol/test_hostile", "test_every_single_byte_can_be_replaced"),
    "P16": (
        "sending/test_produce_results",
        "test_an_answer_that_names_a_partition_twice_closes_the_connection_and_loses_nothing",
    ),
    "P17": (
        "sending/test_produce_results",
        "test_an_answer_without_an_offset_is_a_success_without_an_offset",
    ),
    "P20": ("test_cluster", "test_a_hint_that_is_old_or_makes_no_sense_changes_nothing"),
    # metadata
    "M6": ("test_cluster", "test_metadata_older_than_a_hint_does_not_undo_it"),
    "M7": ("end_to_end/test_races", "test_a_leader_missing_from_the_broker_list_does_not_block_the_loop"),
    "M9": ("network/test_metadata", "test_a_topic_that_is_being_created_is_asked_for_again_with_pauses"),
    "M11": ("network/test_metadata", "test_a_topic_without_partitions_is_waited_for"),
    "M17": (
        "network/test_large_answer",
        "test_metadata_of_100000_partitions_in_use_blocks_the_loop_for_less_than_200_ms",
    ),
    "M19": ("end_to_end/test_apache_faults", "test_killed_controller_costs_no_record"),
    "M20": (
        "network/test_metadata",
        "test_when_all_known_brokers_are_gone_the_bootstrap_servers_are_used_again",
    ),
    "M21": ("network/test_metadata", "test_another_cluster_at_the_same_address_is_reported"),
    "M22": (
        "network/test_metadata",
        "test_unreachable_brokers_behind_a_live_bootstrap_server_cause_no_request_storm",
    ),
    # appends, some on a real Kafka cluster
    "B1": ("end_to_end/test_apache_faults", "test_killed_leader_costs_no_record"),
    "B2": ("end_to_end/test_apache_faults", "test_restart_of_the_whole_cluster_costs_no_record"),
    "B12": (
        "sending/test_produce_results",
        "test_records_named_by_the_broker_fail_with_its_reason_and_the_others_are_sent_again",
    ),
    "B18": (
        "sending/test_produce_results",
        "test_a_log_that_lost_acknowledged_records_accepts_the_next_ones",
    ),
    "B3": ("end_to_end/test_apache_faults", "test_frozen_leader_costs_no_record"),
    # producer ids below 0, and settings
    "S15": ("sending/test_producer_id", "test_transient_errors_are_retried_with_a_growing_back_off"),
    "S17": ("test_config", "test_more_than_five_in_flight_contradict_idempotence"),
    "S18": ("test_config", "test_explicit_idempotence_contradicts_weaker_acks"),
    # copied exactly once while brokers and clients are restarted; the number of records depends on time
    "T29": ("campaigns/test_chaos", "test_every_promise_is_kept_while_brokers_and_network_fail"),
    # the client's process is killed
    "T32": (
        "end_to_end/test_process_faults",
        "test_nothing_of_a_killed_clients_open_transaction_is_committed",
    ),
    # security needs TLS and SASL on real sockets
    "X1": (
        "security/test_mechanisms",
        "test_an_invalid_certificate_makes_start_fail_immediately_and_no_password_is_sent",
    ),
    "X2": ("security/test_threats", "test_threat_12_no_version_below_tls_1_2_is_used"),
    "X3": (
        "network/test_bad_addresses",
        "test_start_fails_in_time_on_a_port_that_closes_the_connection_or_stays_silent",
    ),
    "X4": (
        "network/test_tls_faults",
        "test_a_response_that_is_cut_off_within_tls_is_ignored_and_its_record_is_stored_once",
    ),
    "X5": ("security/test_mechanisms", "test_exchanged_certificates_are_used_for_the_next_connection"),
    "X6": (
        "security/test_mechanisms",
        "test_a_wrong_password_makes_start_fail_immediately_with_the_message_of_the_broker",
    ),
    "X7": (
        "security/test_mechanisms",
        "test_a_mechanism_that_the_broker_rejects_is_named_with_those_it_accepts",
    ),
    "X8": ("security/test_sasl", "test_iterations_out_of_range_are_refused_before_anything_is_computed"),
    "X9": ("security/test_mechanisms", "test_a_provider_that_hangs_is_limited_by_the_set_up_time"),
    "X10": ("security/test_login", "test_a_token_is_used_again_for_80_percent_of_its_life"),
    "X11": (
        "security/test_sessions",
        "test_a_rejected_renewal_ends_the_connection_and_requests_in_flight_may_have_been_executed",
    ),
    "X12": ("security/test_mechanisms", "test_a_changing_password_is_requested_for_each_connection"),
    "X13": (
        "security/test_threats",
        "test_threat_14_a_broker_that_is_only_advertised_gets_no_password_before_its_certificate_was_checked",
    ),
    "X14": ("security/test_canary", "test_threat_20_no_secret_is_in_any_output"),
    "X15": (
        "security/test_mechanisms",
        "test_only_small_frames_are_accepted_until_the_broker_is_authenticated",
    ),
    # the application's side of asyncio: on both event loops
    "A1": ("end_to_end/test_producer_calls", "test_try_send_fails_at_once_if_the_buffer_is_full"),
    "A2": (
        "end_to_end/test_send_semantics",
        "test_a_waiter_cancelled_just_as_its_record_found_room_takes_nothing_from_the_next",
    ),
    "A4": ("records/test_delivery", "test_cancelled_delivery_stays_cancelled_and_its_record_is_sent"),
    "A5": ("end_to_end/test_send_semantics", "test_wait_for_a_send_that_waits_for_room_leaves_no_record"),
    "A6": ("end_to_end/test_producer_calls", "test_a_cancelled_flush_has_no_effect_on_the_records"),
    "A7": ("end_to_end/test_producer_calls", "test_flush_waits_only_for_earlier_records"),
    "A8": ("end_to_end/test_producer_calls", "test_flush_cuts_the_linger_short"),
    "A10": (
        "sending/test_lifecycle",
        "test_cancelling_close_gives_up_the_remaining_records_and_the_next_close_reports_them",
    ),
    "A11": ("sending/test_lifecycle", "test_use_after_close_is_refused"),
    "A12": (
        "records/test_serializers",
        "test_a_serializer_that_raises_is_the_cause_of_the_error_and_nothing_is_buffered",
    ),
    "A13": ("records/test_delivery", "test_failing_callback_stops_no_other"),
    "A14": ("end_to_end/test_send_semantics", "test_a_callback_may_send_flush_and_close"),
    "A15": ("records/test_interceptors", "test_an_interceptor_that_raises_is_logged_and_skipped"),
    "A16": (
        "sending/test_giving_up",
        "test_a_blocked_loop_does_not_expire_batches_that_were_answered_in_time",
    ),
    "A17": (
        "end_to_end/test_process_faults",
        "test_a_loop_that_is_closed_before_its_producer_leaves_only_a_warning",
    ),
    "A18": ("end_to_end/test_producer_process", "test_an_unclosed_producer_warns"),
    "A19": (
        "end_to_end/test_process_faults",
        "test_an_interpreter_with_records_in_flight_exits_soon_and_warns",
    ),
    "A20": ("end_to_end/test_producer_process", "test_ctrl_c_leaves_cleanly"),
    "A21": (
        "end_to_end/test_producer_process",
        "test_a_forked_child_gets_errors_and_does_no_harm_to_its_parent",
    ),
    "A22": ("sending/test_lifecycle", "test_use_in_another_loop_is_refused"),
    "A23": ("sending/test_lifecycle", "test_a_producer_is_built_without_a_running_loop"),
    "A24": (
        "end_to_end/test_threads",
        "test_threads_that_share_producers_find_each_record_where_its_delivery_says",
    ),
    "A25": (
        "sending/test_lifecycle",
        "test_a_sender_that_ends_because_of_a_bug_fails_all_records_immediately",
    ),
    "A26": ("end_to_end/test_send_semantics", "test_a_task_group_whose_sibling_fails_leaves_a_whole_batch"),
    "A27": (
        "end_to_end/test_process_faults",
        "test_many_calls_that_wait_for_room_cost_the_same_each_and_stay_within_the_buffer",
    ),
    "A28": ("records/test_delivery", "test_callback_runs_in_the_context_in_which_it_was_added"),
    # resources
    "Z2": (
        "end_to_end/test_large_records",
        "test_a_record_of_100_mib_does_not_block_the_loop",
    ),
    "Z4": ("sending/test_sender", "test_requests_are_packed_by_the_compressed_size"),
    "Z6": (
        "end_to_end/test_process_faults",
        "test_a_client_stopped_for_longer_than_its_timeouts_reports_true_results_when_it_resumes",
    ),
    "Z7": (
        "end_to_end/test_producer_records",
        "test_an_invalid_record_has_a_narrow_error_and_no_other_is_lost",
    ),
    "Z10": ("records/test_accumulator", "test_a_batch_that_cannot_be_compressed_is_sent_uncompressed"),
    "Z11": ("end_to_end/test_races", "test_a_batch_that_can_not_be_compressed_is_sent_uncompressed"),
    "Z12": ("end_to_end/test_endurance", "test_72_hours_of_rolling_faults_leave_nothing_behind"),
    "Z13": ("end_to_end/test_process_faults", "test_many_producers_one_after_the_other_leave_nothing_behind"),
    "P13": ("protocol/test_outcomes", "test_unknown_code_fails_with_an_unknown_outcome"),
}
"""(module, test) for the faults that the simulation can't play."""

MISSING: dict[str, str] = {}
"""Faults that no test plays yet, and what a test would need."""
