//! Books placed orders in a ledger, each exactly once. It may be killed at any time.
//!
//!     DATABASE_URL=postgres://... BOOTSTRAP_SERVERS=localhost:9092 cargo run --bin consumer books outbox.event.order
use std::{env, error::Error, time::Duration};

use postgres::{Client, NoTls, Transaction};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

// A record of the daemon moves the mark of its partition, or is a duplicate (0 rows). The upsert locks the mark until the
// commit: a second consumer of the partition waits here. The position has version 1 or 2: another one becomes a NULL, which
// fails. Epoch 0 is not known, and counts as the mark's.
const MOVE_MARK: &str = "
INSERT INTO partition_marks AS mark (consumer, topic, partition, origin, epoch, timeline, commit_lsn, ordinal)
SELECT $1, $2, $3, CASE WHEN p[1] IN ('1', '2') THEN array_to_string(p[2:4], ':') END, p[5]::bigint, p[6]::bigint,
       (left(p[7], 8) || '/' || right(p[7], 8))::pg_lsn, p[8]::bigint
FROM string_to_array($4, ':') AS f,
     LATERAL (SELECT CASE f[1] WHEN '1' THEN f[:2] || ARRAY['0', '', '0'] || f[3:] ELSE f END AS p) AS parts
ON CONFLICT (consumer, topic, partition, origin) DO UPDATE
SET epoch = excluded.epoch, timeline = excluded.timeline, commit_lsn = excluded.commit_lsn, ordinal = excluded.ordinal
WHERE (coalesce(nullif(excluded.epoch, 0), mark.epoch), excluded.timeline, excluded.commit_lsn, excluded.ordinal)
    > (mark.epoch, mark.timeline, mark.commit_lsn, mark.ordinal)";
const ADD_ID: &str = "INSERT INTO processed_events (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
const BOOK: &str = "INSERT INTO ledger (event_id, order_id, amount)
SELECT $1, (p ->> 'order')::bigint, (p ->> 'amount')::bigint FROM CAST($2::text AS jsonb) AS p";

fn header<'a>(record: &'a BorrowedMessage, name: &str) -> Option<&'a str> {
    let found = record.headers()?.iter().find(|h| h.key == name)?;
    std::str::from_utf8(found.value?).ok()
}

fn process(tx: &mut Transaction, group: &str, record: &BorrowedMessage) -> Result<(), Box<dyn Error>> {
    let id = header(record, "id").ok_or("a record without the header id")?;
    // A record that a command has sent has no position, or one outside the order (outboxcdc-recovered): only its id decides.
    // For that, the ids of the daemon's records are stored as well.
    if let (Some(position), None) = (header(record, "outboxcdc-position"), header(record, "outboxcdc-recovered")) {
        if tx.execute(MOVE_MARK, &[&group, &record.topic(), &record.partition(), &position])? == 0 {
            return Ok(());
        }
    }
    if tx.execute(ADD_ID, &[&group, &id])? == 1 {
        let value = std::str::from_utf8(record.payload().ok_or("a record without a value")?)?;
        tx.execute(BOOK, &[&id, &value])?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().collect();
    let (group, topic) = (args[1].as_str(), args[2].as_str());
    let mut db = Client::connect(&env::var("DATABASE_URL")?, NoTls)?;
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", env::var("BOOTSTRAP_SERVERS")?)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("session.timeout.ms", "6000") // how long the partitions of a killed consumer wait
        .create()?;
    consumer.subscribe(&[topic])?;
    loop {
        // The first record, then what has arrived with it.
        let mut batch = Vec::new();
        while batch.len() < 100 {
            let wait = Duration::from_millis(if batch.is_empty() { 1000 } else { 0 });
            let Some(record) = consumer.poll(wait) else { break };
            batch.push(record?);
        }
        if batch.is_empty() {
            continue;
        }
        // Two consumers lock marks in the same order, so neither waits for the other forever.
        batch.sort_by_key(|record| (record.partition(), record.offset()));
        // One transaction for marks, ids and effects.
        let mut tx = db.transaction()?;
        for record in &batch {
            process(&mut tx, group, record)?;
        }
        tx.commit()?;
        // After the database: a crash before this line repeats the batch, and the marks recognize it. Name the offsets: without them
        // librdkafka commits what was consumed when it gets to it, which may be records that come after the batch.
        let ends = batch.iter().map(|r| ((topic.to_string(), r.partition()), Offset::Offset(r.offset() + 1))).collect();
        consumer.commit(&TopicPartitionList::from_topic_map(&ends)?, CommitMode::Async)?;
    }
}
