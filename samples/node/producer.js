// Places orders and writes an event for each.
//
//     DATABASE_URL=postgres://... node producer.js 100
import pg from 'pg'

const db = new pg.Client({ connectionString: process.env.DATABASE_URL })
await db.connect()

async function placeOrder(amount) {
  // One transaction: order and event are both committed, or neither. Nothing is sent to Kafka here.
  await db.query('BEGIN')
  const { rows: [order] } = await db.query('INSERT INTO orders (amount) VALUES ($1) RETURNING id', [amount])
  // aggregate_id is the key of the record: the events of one order stay in order. The column id has a default.
  await db.query(
    `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', $1, 'OrderPlaced', $2)`,
    [order.id, { order: Number(order.id), amount }],
  )
  await db.query('COMMIT')
}

for (let n = Number(process.argv[2]); n > 0; n--) {
  // An error ends the process, and the connection's end rolls the transaction back. With a pool: catch, ROLLBACK, release.
  await placeOrder(100 + Math.floor(Math.random() * 9900))
}
await db.end()
