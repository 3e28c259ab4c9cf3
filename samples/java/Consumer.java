import static java.nio.charset.StandardCharsets.UTF_8;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Books placed orders in a ledger, each exactly once. It may be killed at any time.
 *
 * <pre>DATABASE_URL=jdbc:postgresql://... BOOTSTRAP_SERVERS=localhost:9092 \
 * java -cp 'target/dependency/*' Consumer.java books outbox.event.order</pre>
 */
public class Consumer {
  // 0 rows: the event was processed before, and was sent again.
  static final String ADD_ID = "INSERT INTO processed_events (consumer, topic, id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
  static final String BOOK = "INSERT INTO ledger (event_id, order_id, amount)"
      + " SELECT ?, (p ->> 'order')::bigint, (p ->> 'amount')::bigint FROM CAST(? AS jsonb) AS p";

  static int execute(Connection db, String sql, Object... values) throws SQLException {
    try (var statement = db.prepareStatement(sql)) {
      for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
      return statement.executeUpdate();
    }
  }

  static void process(Connection db, String group, ConsumerRecord<String, String> record) throws SQLException {
    String id = new String(record.headers().lastHeader("id").value(), UTF_8);
    if (execute(db, ADD_ID, group, record.topic(), id) == 1) execute(db, BOOK, id, record.value());
  }

  public static void main(String[] args) throws SQLException {
    Map<String, Object> settings = Map.of(
        "bootstrap.servers", System.getenv("BOOTSTRAP_SERVERS"),
        "group.id", args[0],
        "auto.offset.reset", "earliest",
        "enable.auto.commit", false,
        "session.timeout.ms", 6000); // how long the partitions of a killed consumer wait
    try (var db = DriverManager.getConnection(System.getenv("DATABASE_URL"));
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      db.setAutoCommit(false);
      consumer.subscribe(List.of(args[1]));
      while (true) {
        var records = consumer.poll(Duration.ofSeconds(1));
        // One transaction for the ids and effects of a partition.
        for (var partition : records.partitions()) {
          for (var record : records.records(partition)) process(db, args[0], record);
          db.commit();
        }
        // After the database: a crash before this line repeats the records, and the ids recognize them.
        if (!records.isEmpty()) consumer.commitAsync();
      }
    }
  }
}
