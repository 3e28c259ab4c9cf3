//! Places orders and writes an event for each.
//!
//!     DATABASE_URL=postgres://... cargo run --bin producer 100
use std::{env, error::Error};

use postgres::{Client, NoTls};

fn place_order(db: &mut Client, amount: i64) -> Result<(), postgres::Error> {
    // One transaction: order and event are both committed, or neither. Nothing is sent to Kafka here.
    let mut tx = db.transaction()?;
    let order: i64 = tx.query_one("INSERT INTO orders (amount) VALUES ($1) RETURNING id", &[&amount])?.get(0);
    // aggregate_id is the key of the record: the events of one order stay in order. The column id has a default.
    tx.execute(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('order', $1, 'OrderPlaced', $2::text::jsonb)",
        &[&order.to_string(), &format!(r#"{{"order": {order}, "amount": {amount}}}"#)],
    )?;
    tx.commit()
}

fn main() -> Result<(), Box<dyn Error>> {
    let count: i64 = env::args().nth(1).ok_or("usage: producer COUNT")?.parse()?;
    let mut db = Client::connect(&env::var("DATABASE_URL")?, NoTls)?;
    for n in 0..count {
        place_order(&mut db, 100 + n * 7919 % 9900)?;
    }
    Ok(())
}
