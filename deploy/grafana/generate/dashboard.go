package main

import "strings"

// Selectors of queries. Only metrics of the slot have the label slot, so the variable instance offers the instances of
// the selected slots.
const (
	ours = `job=~"$job", instance=~"$instance"`
	slot = `job=~"$job", instance=~"$instance", slot=~"$slot"`
	// The metrics of audits have the job and the instance of node_exporter.
	audited = `slot=~"$slot"`
	// The metrics of consumers have the job and the instance of an application.
	consumed = `consumer=~"$consumer"`
)

// expand replaces the selectors in an expression: $I selects instances, $S slots, $A audits, $C consumers, and $R is
// the range of a rate.
func expand(expr string) string {
	return strings.NewReplacer("$I", ours, "$S", slot, "$A", audited, "$C", consumed, "$R", "[$__rate_interval]").Replace(expr)
}

func q(expr, legend string) query { return query{expand(expr), legend} }

func dashboard() object {
	return object{
		"uid": "outboxcdc", "title": "outboxcdc", "tags": []string{"outboxcdc", "postgresql", "kafka"},
		"description":   "From the outbox table to Kafka: is it well, what waits, what it costs. Made by deploy/grafana/generate.",
		"schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "",
		"time": object{"from": "now-3h", "to": "now"},
		"links": []object{{
			"title": "Runbook", "type": "link", "icon": "doc", "targetBlank": true,
			"url": runbook,
		}},
		"annotations": object{"list": []object{{
			"name": "starts", "datasource": source, "enable": true, "iconColor": "blue", "titleFormat": "{{instance}} started", "useValueForTime": true,
			"expr": expand(`outboxcdc_start_time_seconds{$I} * 1000`),
		}}},
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": object{}},
			variable("job", "Job", `label_values(outboxcdc_build_info, job)`),
			variable("slot", "Slot", `label_values(outboxcdc_slot_wal_status{job=~"$job"}, slot)`),
			variable("instance", "Instance", `label_values(outboxcdc_slot_wal_status{job=~"$job", slot=~"$slot"}, instance)`),
			variable("consumer", "Consumer", `label_values(outboxcdc_inbox_records_total, consumer)`),
		}},
		"panels": layout([]row{
			{title: "Overview", panels: overview()},
			{title: "Kafka", panels: kafka()},
			{title: "Postgres", panels: postgres()},
			{title: "Poison", panels: poison()},
			{title: "Audit", panels: audits()},
			{title: "Retention", panels: retention()},
			{title: "Consumers", panels: consumers()},
			{title: "Process", panels: process(), folded: true},
		}),
	}
}

func stat(title, unit, about string, more func(object), queries ...query) panel {
	return panel{title: title, kind: "stat", unit: unit, about: about, queries: queries, width: 4, height: 4, more: more}
}

func graph(title, unit, about string, queries ...query) panel {
	return panel{title: title, kind: "timeseries", unit: unit, about: about, queries: queries, width: 8, height: 8}
}

func overview() []panel {
	state := stat("State", "short", "State of each instance. A standby is waiting_for_slot.", stateNames,
		q(`outboxcdc_state{$I} == 1`, "{{instance}}: {{state}}")).withAlerts("OutboxCDCDown", "OutboxCDCNotStreaming", "OutboxCDCHeld", "OutboxCDCStandbyGone")
	timeline := panel{
		title: "States", kind: "state-timeline", unit: "short", width: 8, height: 8,
		about: "States of each instance over time.", queries: []query{q(`outboxcdc_state{$I} == 1`, "{{instance}} {{state}}")},
		more: thresholds("green"), alerts: []string{"OutboxCDCNotStreaming", "OutboxCDCFlapping"},
	}
	return []panel{
		state,
		stat("Lag", "s", "Age of the oldest commit that Kafka has not acknowledged.", thresholds("green", 60, "orange", 600, "red"),
			q(`max(outboxcdc_replication_lag_seconds{$I} unless on (job, instance) outboxcdc_state{state="waiting_for_slot"} == 1)`, "behind")).withAlerts("OutboxCDCLagHigh"),
		stat("Lag in WAL", "bytes", "End of the server's WAL minus the confirmed position. WAL of other tables is included.", thresholds("blue"),
			q(`max(outboxcdc_replication_lag_bytes{$I} unless on (job, instance) outboxcdc_state{state="waiting_for_slot"} == 1)`, "behind")),
		stat("Retained WAL", "bytes", "WAL that the server retains because of the slot.", thresholds("green", 1<<30, "orange", 5<<30, "red"),
			q(`max by (slot) (outboxcdc_slot_retained_wal_bytes{$S})`, "{{slot}}")).withAlerts("OutboxCDCSlotRetentionHigh"),
		stat("WAL until the slot is lost", "bytes", "WAL that may still be written before max_slot_wal_keep_size is exceeded. No data: the server sets no limit.",
			thresholds("red", 1<<30, "orange", 4<<30, "green"), q(`min by (slot) (outboxcdc_slot_safe_wal_size_bytes{$S})`, "{{slot}}")).withAlerts("OutboxCDCSlotUnsafe", "OutboxCDCSlotRetentionHigh"),
		stat("Throughput", "short", "Events acknowledged per second.", thresholds("blue"),
			q(`sum(rate(outboxcdc_events_delivered_total{$I}$R))`, "events/s")),

		graph("Events per second", "short", "Acknowledged by Kafka, by topic.", q(`sum by (topic) (rate(outboxcdc_events_delivered_total{$I}$R))`, "{{topic}}")),
		graph("Latency, commit to ack", "s", "Time from the commit of an event to its acknowledgement, measured with the clocks of two machines.",
			q(`histogram_quantile(0.5, sum by (le) (rate(outboxcdc_event_latency_seconds_bucket{$I}$R)))`, "50 %"),
			q(`histogram_quantile(0.95, sum by (le) (rate(outboxcdc_event_latency_seconds_bucket{$I}$R)))`, "95 %"),
			q(`histogram_quantile(0.99, sum by (le) (rate(outboxcdc_event_latency_seconds_bucket{$I}$R)))`, "99 %")).withAlerts("OutboxCDCLatencySLO"),
		timeline,
		graph("Lag", "s", "Age of the oldest commit that Kafka has not acknowledged. For a standby the lag counts from its start.",
			q(`outboxcdc_replication_lag_seconds{$I}`, "{{instance}}")).withAlerts("OutboxCDCLagHigh"),
		graph("In flight", "percentunit", "Events and bytes in flight, relative to tuning.max_in_flight. 100 %: Kafka is slower than Postgres.",
			q(`outboxcdc_inflight_events{$I} / outboxcdc_inflight_limit_events{$I}`, "events {{instance}}"),
			q(`outboxcdc_inflight_bytes{$I} / outboxcdc_inflight_limit_bytes{$I}`, "bytes {{instance}}")),
		graph("Waiting transactions", "short", "Transactions that were received and are not completely acknowledged.", q(`outboxcdc_unconfirmed_transactions{$I}`, "{{instance}}")).withAlerts("OutboxCDCStalled"),
	}
}

var stateColours = []struct{ states, colour string }{
	{"streaming", "green"},
	{"backpressured|waiting_for_topic|waiting_for_standby|waiting_for_postgres|waiting_for_kafka|waiting_for_position_topic|reconnecting", "orange"},
	{"parked|failed", "red"},
}

// stateNames shows the name of the state instead of the value 1.
func stateNames(o object) {
	o["options"].(object)["textMode"] = "name"
	thresholds("blue")(o)
	var overrides []object
	for _, c := range stateColours {
		overrides = append(overrides, object{
			"matcher":    object{"id": "byRegexp", "options": ".*: (" + c.states + ")"},
			"properties": []object{{"id": "color", "value": object{"mode": "fixed", "fixedColor": c.colour}}},
		})
	}
	o["fieldConfig"].(object)["overrides"] = overrides
}

func kafka() []panel {
	return []panel{
		graph("Time of a batch", "s", "Time from the first attempt to the acknowledgement, including retries; 99 % by topic.",
			q(`histogram_quantile(0.99, sum by (topic, le) (rate(outboxcdc_kafka_produce_duration_seconds_bucket{$I}$R)))`, "{{topic}}")),
		graph("Refused records per second", "short", "Each error ends a session.",
			q(`sum by (topic, error) (rate(outboxcdc_kafka_produce_errors_total{$I}$R))`, "{{topic}} {{error}}")).withAlerts("OutboxCDCProduceErrors"),
		graph("Backpressure and quotas", "percentunit", "Share of the time in which reading waited because tuning.max_in_flight was reached, and pauses because of a quota.",
			q(`rate(outboxcdc_backpressure_seconds_total{$I}$R)`, "backpressure {{instance}}"),
			q(`rate(outboxcdc_kafka_throttle_seconds_total{$I}$R)`, "throttled {{instance}}")),
		graph("Events in a batch", "short", "Average number of events in a batch.",
			q(`sum(rate(outboxcdc_kafka_batch_events_sum{$I}$R)) / sum(rate(outboxcdc_kafka_batch_events_count{$I}$R))`, "events")),
		graph("Sizes", "bytes", "Average size of an event (key, value and headers), and of a batch before compression.",
			q(`sum(rate(outboxcdc_event_size_bytes_sum{$I}$R)) / sum(rate(outboxcdc_event_size_bytes_count{$I}$R))`, "event"),
			q(`sum(rate(outboxcdc_kafka_batch_bytes_sum{$I}$R)) / sum(rate(outboxcdc_kafka_batch_bytes_count{$I}$R))`, "batch")),
		graph("Bytes per second", "Bps", "Bytes of events before compression, and all bytes on the connections to the brokers.",
			q(`sum(rate(outboxcdc_event_bytes_total{$I}$R))`, "events"),
			q(`sum(rate(outboxcdc_kafka_sent_bytes_total{$I}$R))`, "sent"),
			q(`sum(rate(outboxcdc_kafka_received_bytes_total{$I}$R))`, "received")),
		graph("Batches sent again", "short", "Batches sent again per second within a session; idempotence prevents duplicates.",
			q(`rate(outboxcdc_kafka_produce_retries_total{$I}$R)`, "{{instance}}")),
		graph("Requests", "short", "Requests per second, and requests without a response yet.",
			q(`sum(rate(outboxcdc_kafka_requests_total{$I}$R))`, "per second"),
			q(`sum(outboxcdc_kafka_requests_in_flight{$I})`, "open")),
		graph("Connections and partitions", "short", "Open connections to brokers, and the difference between the partitions of a topic and the number that keys are hashed over.",
			q(`sum(outboxcdc_kafka_broker_connections{$I})`, "connections"),
			q(`max by (topic) (outboxcdc_kafka_topic_partitions_changed{$I}) != 0`, "changed: {{topic}}")).withAlerts("OutboxCDCTopicPartitionsChanged"),
		graph("Phantoms", "short", "Delivered events that the server lost at a failover.",
			q(`increase(outboxcdc_phantom_events_total{$I}$R)`, "phantoms {{instance}}")).withAlerts("OutboxCDCPhantoms"),
		graph("Ends of partitions read", "short", "Reads of the ends of partitions at a start, by result.",
			q(`sum by (result) (increase(outboxcdc_kafka_tail_reads_total{$I}$R))`, "{{result}}")),
	}
}

func postgres() []panel {
	status := panel{
		title: "Status of the slot", kind: "state-timeline", unit: "short", width: 8, height: 8, more: thresholds("green"),
		about:   "wal_status: reserved and extended are healthy; unreserved means that the next checkpoint may invalidate the slot; lost means that the slot is invalidated.",
		alerts:  []string{"OutboxCDCSlotUnsafe", "OutboxCDCSlotLost"},
		queries: []query{q(`max by (slot, status) (outboxcdc_slot_wal_status{$S}) == 1`, "{{slot}} {{status}}")},
	}
	return []panel{
		graph("WAL of the slot", "bytes", "Retained WAL, unconfirmed WAL, and WAL until the slot is lost. If much more is retained than unconfirmed, a long transaction is open.",
			q(`max by (slot) (outboxcdc_slot_retained_wal_bytes{$S})`, "retained {{slot}}"),
			q(`max by (slot) (outboxcdc_slot_unconfirmed_wal_bytes{$S})`, "unconfirmed {{slot}}"),
			q(`min by (slot) (outboxcdc_slot_safe_wal_size_bytes{$S})`, "until lost {{slot}}")).withAlerts("OutboxCDCSlotRetentionHigh", "OutboxCDCSlotUnsafe"),
		status,
		graph("Failover slot", "short", "1 while the slot is synchronised to standbys (PostgreSQL 17 and later); 0: after a failover there is no slot.",
			q(`max by (slot) (outboxcdc_slot_failover{$S})`, "{{slot}}")).withAlerts("OutboxCDCNoFailoverSlot"),
		graph("Copies on standbys", "short", "With postgres.standbys: 1 while the host answers, while the slot survives a failover to the host, and while another slot of that name blocks the copy. The primary only answers.",
			q(`max by (slot, host) (outboxcdc_standby_up{$S})`, "answers {{slot}} {{host}}"),
			q(`max by (slot, host) (outboxcdc_standby_slot_ready{$S})`, "ready {{slot}} {{host}}"),
			q(`max by (slot, host) (outboxcdc_standby_slot_blocked{$S})`, "blocked {{slot}} {{host}}")).withAlerts("OutboxCDCStandbySlotBlocked", "OutboxCDCStandbySlotNotReady"),
		graph("Lag of the copies", "bytes", "With postgres.standbys: confirmed position of the slot minus that of each copy. After a failover, the new primary sends these events again.",
			q(`max by (slot, host) (outboxcdc_standby_slot_lag_bytes{$S})`, "{{slot}} {{host}}")),
		graph("Invalidation", "short", "Why the server has invalidated the slot. No data: the slot is valid.",
			q(`max by (slot, reason) (outboxcdc_slot_invalidated{$S}) == 1`, "{{slot}}: {{reason}}")).withAlerts("OutboxCDCSlotLost"),
		graph("WAL per second", "Bps", "WAL that the server writes for all databases, and bytes that the daemon receives, which are those of the outbox.",
			q(`max(rate(outboxcdc_server_wal_end_position_bytes{$I}$R))`, "written"),
			q(`sum(rate(outboxcdc_replication_received_bytes_total{$I}$R))`, "received")),
		graph("Sessions that ended", "short", "Sessions that ended with an error, per minute, by reason.",
			q(`60 * sum by (reason) (rate(outboxcdc_replication_reconnects_total{$I}$R)) > 0`, "{{reason}}")).withAlerts("OutboxCDCFlapping"),
		graph("Messages per second", "short", "Messages of the replication stream, by type.", q(`sum by (type) (rate(outboxcdc_replication_messages_total{$I}$R)) > 0`, "{{type}}")),
		graph("Time since", "s", "Time since the newest commit that was read, the last acknowledgement, and the last confirmation.",
			q(`time() - (outboxcdc_last_commit_timestamp_seconds{$I} > 0)`, "commit {{instance}}"),
			q(`time() - (outboxcdc_last_ack_timestamp_seconds{$I} > 0)`, "ack {{instance}}"),
			q(`time() - (outboxcdc_last_confirm_timestamp_seconds{$I} > 0)`, "confirm {{instance}}")),
		graph("Transactions per second", "short", "Transactions that were read to their commit.", q(`sum(rate(outboxcdc_transactions_total{$I}$R))`, "transactions")),
		graph("Status updates per second", "short", "Status updates by result.", q(`sum by (result) (rate(outboxcdc_status_updates_total{$I}$R))`, "{{result}}")),
		graph("Slot: failed reads, found ahead", "short", "Failed reads of the slot, and sessions that found the slot ahead of what this process had confirmed: another instance was active.",
			q(`increase(outboxcdc_slot_poll_errors_total{$I}$R)`, "failed {{instance}}"),
			q(`increase(outboxcdc_slot_ahead_total{$I}$R)`, "ahead {{instance}}")),
	}
}

func poison() []panel {
	return []panel{
		stat("Dead letters, 24 h", "short", "Events that were sent to the dead-letter topic.", thresholds("green", 1, "orange"),
			q(`sum(increase(outboxcdc_events_dead_lettered_total{$I}[24h]))`, "events")).withAlerts("OutboxCDCDeadLetters"),
		stat("Dropped, 24 h", "short", "Poison events that were dropped because of the policy skip.", thresholds("green", 1, "red"),
			q(`sum(increase(outboxcdc_events_skipped_total{$I, reason="poison"}[24h]))`, "events")).withAlerts("OutboxCDCPoisonSkipped"),
		{
			title: "Dead letters", kind: "timeseries", unit: "short", about: "Dead letters by topic and reason.", width: 8, height: 8,
			queries: []query{q(`sum by (topic, reason) (increase(outboxcdc_events_dead_lettered_total{$I}$R)) > 0`, "{{reason}} → {{topic}}")},
		},
		{
			title: "Not sent", kind: "timeseries", unit: "short", about: "Rows that were read and not sent: already delivered, updates, and skipped poison events.", width: 8, height: 8,
			queries: []query{q(`sum by (reason) (increase(outboxcdc_events_skipped_total{$I}$R)) > 0`, "{{reason}}")},
		},
	}
}

func audits() []panel {
	return []panel{
		stat("Last clean audit", "s", "Time since the last audit without findings. No data: no audit was clean, or audits do not write metrics.", thresholds("green", 26*3600, "orange"),
			q(`time() - (outboxcdc_audit_last_clean_timestamp_seconds{$A} > 0)`, "{{slot}}")).withAlerts("OutboxCDCAuditOld"),
		stat("Last audit", "s", "Time since the last audit, with or without findings.", thresholds("green", 26*3600, "orange"),
			q(`time() - outboxcdc_audit_timestamp_seconds{$A}`, "{{slot}}")).withAlerts("OutboxCDCAuditOld"),
		graph("Findings of the last audit", "short", "Findings by kind: missing, phantom, differs, duplicate, inversion.",
			q(`outboxcdc_audit_findings{$A}`, "{{slot}} {{kind}}")).withAlerts("OutboxCDCAuditFindings"),
		graph("Size of the last audit", "short", "Rows that were compared, rows that could not be judged, records that were read, and seconds that the audit took.",
			q(`outboxcdc_audit_rows{$A}`, "rows {{slot}}"),
			q(`outboxcdc_audit_unjudged{$A}`, "unjudged rows {{slot}}"),
			q(`outboxcdc_audit_records{$A}`, "records {{slot}}"),
			q(`outboxcdc_audit_duration_seconds{$A}`, "seconds {{slot}}")).withAlerts("OutboxCDCAuditUnjudged"),
	}
}

// retention has the metrics of retain, which come from node_exporter, or from retain itself.
func retention() []panel {
	return []panel{
		stat("Last run of retain", "s", "Time since the last run of retain. No data: retain does not write metrics.", thresholds("green", 26*3600, "orange"),
			q(`time() - outboxcdc_retention_timestamp_seconds`, "{{instance}}")).withAlerts("OutboxCDCRetentionOld"),
		graph("Size of the outbox tables", "bytes", "Tables with their indexes, before the last run of retain.",
			q(`outboxcdc_retention_table_bytes`, "{{table}}")),
		graph("Age of the oldest row", "s", "Of the rows that the last run of retain has left. No data: no index has the times of the rows.",
			q(`time() - (outboxcdc_retention_oldest_row_timestamp_seconds > 0)`, "{{table}}"),
			q(`time() - (outboxcdc_retention_last_removed_timestamp_seconds > 0)`, "last removal {{table}}")),
		graph("Rows that had to stay", "short", "Partitions whose rows are old enough and had to stay, by reason, and the slots that have not confirmed.",
			q(`outboxcdc_retention_overdue_partitions > 0`, "{{table}} {{reason}}"),
			q(`outboxcdc_retention_slot_blocks > 0`, "slot {{slot}}")).withAlerts("OutboxCDCRetentionBlocked", "OutboxCDCRetentionArchive"),
	}
}

// consumers has the metrics of applications, which have jobs and instances of their own.
func consumers() []panel {
	return []panel{
		graph("Parked records", "short", "Records that wait because an earlier record of their key has failed.",
			q(`max by (consumer, topic, state) (outboxcdc_inbox_parked_records{$C})`, "{{consumer}} {{topic}} {{state}}")).withAlerts("OutboxCDCInboxBacklog"),
		graph("Parked keys", "short", "Keys whose oldest record has failed. The dead ones wait for a person.",
			q(`max by (consumer, topic, state) (outboxcdc_inbox_parked_keys{$C})`, "{{consumer}} {{topic}} {{state}}")).withAlerts("OutboxCDCInboxStuck"),
		graph("Age of the oldest parked key", "s", "Time since the key was parked that is parked longest, and how late the next try is.",
			q(`time() - min by (consumer, topic, state) (outboxcdc_inbox_parked_oldest_timestamp_seconds{$C})`, "{{consumer}} {{topic}} {{state}}"),
			q(`max by (consumer, topic) (outboxcdc_inbox_parked_overdue_seconds{$C})`, "overdue {{consumer}} {{topic}}")).withAlerts("OutboxCDCInboxSlow", "OutboxCDCInboxStuck"),
		graph("Records per second", "short", "Records of batches: handled, parked, and parked behind another one of their key.",
			q(`sum by (consumer, result) (rate(outboxcdc_inbox_records_total{$C}$R))`, "{{consumer}} {{result}}")).withAlerts("OutboxCDCInboxErrors"),
		graph("Tries per second", "short", "Tries of parked records by result.",
			q(`sum by (consumer, result) (rate(outboxcdc_inbox_tries_total{$C}$R))`, "{{consumer}} {{result}}")).withAlerts("OutboxCDCInboxErrors"),
	}
}

func process() []panel {
	build := panel{
		title: "Builds", kind: "table", unit: "short", about: "Versions of the running binaries.", width: 8, height: 8,
		queries: []query{q(`max by (instance, version, revision, goversion) (outboxcdc_build_info{$I})`, "")},
	}
	return []panel{
		graph("CPU", "short", "Cores in use.", q(`rate(process_cpu_seconds_total{$I}$R)`, "{{instance}}")),
		graph("Memory", "bytes", "Resident memory, and the part of it in Go's heap.",
			q(`process_resident_memory_bytes{$I}`, "resident {{instance}}"), q(`go_memstats_heap_inuse_bytes{$I}`, "heap {{instance}}")).withAlerts("OutboxCDCLargeRow"),
		graph("Largest row", "bytes", "The largest row that the process has read. The process needs tuning.max_in_flight.bytes and three times that size.",
			q(`outboxcdc_largest_row_bytes{$I}`, "{{instance}}")).withAlerts("OutboxCDCLargeRow"),
		graph("Uptime", "s", "Time since the process started.", q(`time() - outboxcdc_start_time_seconds{$I}`, "{{instance}}")).withAlerts("OutboxCDCRestarting", "OutboxCDCDown"),
		graph("Certificates", "s", "Time until a certificate expires, by setting.",
			q(`outboxcdc_certificate_expiry_timestamp_seconds{$I} - time()`, "{{setting}} {{instance}}")).withAlerts("OutboxCDCCertificateExpires"),
		graph("Last reload of the configuration", "short", "1: successful; 0: the configuration is invalid, and the previous one is in force.",
			q(`outboxcdc_config_last_reload_successful{$I}`, "{{instance}}")).withAlerts("OutboxCDCReloadFailed"),
		graph("Goroutines", "short", "A number that only grows indicates a fault.", q(`go_goroutines{$I}`, "{{instance}}")),
		graph("Open files", "short", "Open files, including sockets.", q(`process_open_fds{$I}`, "{{instance}}")),
		build,
	}
}
