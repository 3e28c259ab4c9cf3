// Books placed orders in a ledger, each exactly once. It may be killed at any time.
//
//     DATABASE_URL=postgres://... BOOTSTRAP_SERVERS=localhost:9092 node consumer.js books outbox.event.order
import kafkajs from 'kafkajs'
import lz4 from 'lz4js'
import pg from 'pg'

// kafkajs reads gzip only. lz4 is the default of kafka.compression.
kafkajs.CompressionCodecs[kafkajs.CompressionTypes.LZ4] = () => ({
  compress: async ({ buffer }) => Buffer.from(lz4.compress(buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})

// 0 rows: the event was processed before, and was sent again.
const addId = 'INSERT INTO processed_events (consumer, topic, id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING'

const [group, topic] = process.argv.slice(2)
const db = new pg.Client({ connectionString: process.env.DATABASE_URL })
await db.connect()

async function book(record) {
  const id = record.headers.id.toString()
  if ((await db.query(addId, [group, topic, id])).rowCount === 0) return
  const { order, amount } = JSON.parse(record.value)
  await db.query('INSERT INTO ledger (event_id, order_id, amount) VALUES ($1, $2, $3)', [id, order, amount])
}

const kafka = new kafkajs.Kafka({ brokers: process.env.BOOTSTRAP_SERVERS.split(','), logLevel: kafkajs.logLevel.ERROR })
const consumer = kafka.consumer({
  groupId: group,
  sessionTimeout: 6000, // how long the partitions of a killed consumer wait
  heartbeatInterval: 2000,
})
// After an error that kafkajs has not survived, end: a supervisor starts the process again.
consumer.on(consumer.events.CRASH, () => process.exit(1))
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
await consumer.run({
  autoCommit: false,
  // A batch has the records of one partition. kafkajs processes one at a time, so all of them use one connection.
  eachBatch: async ({ batch: { partition, messages }, heartbeat }) => {
    await db.query('BEGIN')
    try {
      // One transaction for ids and effects.
      for (const record of messages) await book(record)
      await db.query('COMMIT')
    } catch (error) {
      await db.query('ROLLBACK')
      throw error
    }
    // After the database: a crash before this line repeats the batch, and the ids recognize it.
    const next = BigInt(messages.at(-1).offset) + 1n
    await consumer.commitOffsets([{ topic, partition, offset: next.toString() }])
    await heartbeat()
  },
})
