//! Books placed orders in a ledger, each exactly once. It may be killed at any time.
//!
//!     DATABASE_URL=postgres://... BOOTSTRAP_SERVERS=localhost:9092 cargo run --bin consumer books outbox.event.order
use std::{env, error::Error, time::Duration};

use postgres::{Client, NoTls, Transaction};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

// 0 rows: the event was processed before, and was sent again.
const ADD_ID: &str = "INSERT INTO processed_events (consumer, topic, id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
const BOOK: &str = "INSERT INTO ledger (event_id, order_id, amount)
SELECT $1, (p ->> 'order')::bigint, (p ->> 'amount')::bigint FROM CAST($2::text AS jsonb) AS p";

fn header<'a>(record: &'a BorrowedMessage, name: &str) -> Option<&'a str> {
    let found = record.headers()?.iter().find(|h| h.key == name)?;
    std::str::from_utf8(found.value?).ok()
}

fn process(tx: &mut Transaction, group: &str, record: &BorrowedMessage) -> Result<(), Box<dyn Error>> {
    let id = header(record, "id").ok_or("a record without the header id")?;
    if tx.execute(ADD_ID, &[&group, &record.topic(), &id])? == 1 {
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
        // Two consumers insert ids in the same order, so neither waits for the other forever.
        batch.sort_by_key(|record| (record.partition(), record.offset()));
        // One transaction for ids and effects.
        let mut tx = db.transaction()?;
        for record in &batch {
            process(&mut tx, group, record)?;
        }
        tx.commit()?;
        // After the database: a crash before this line repeats the batch, and the ids recognize it. Name the offsets: without them
        // librdkafka commits what was consumed when it gets to it, which may be records that come after the batch.
        let ends = batch.iter().map(|r| ((topic.to_string(), r.partition()), Offset::Offset(r.offset() + 1))).collect();
        consumer.commit(&TopicPartitionList::from_topic_map(&ends)?, CommitMode::Async)?;
    }
}
