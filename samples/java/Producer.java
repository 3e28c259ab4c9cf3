import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Places orders and writes an event for each.
 *
 * <pre>DATABASE_URL=jdbc:postgresql://... java -cp 'target/dependency/*' Producer.java 100</pre>
 */
public class Producer {
  static void placeOrder(Connection db, long amount) throws SQLException {
    try (var order = db.prepareStatement("INSERT INTO orders (amount) VALUES (?) RETURNING id");
        // aggregate_id is the key of the record: the events of one order stay in order. The column id has a default.
        var event = db.prepareStatement("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)"
            + " VALUES ('order', ?, 'OrderPlaced', ?::jsonb)")) {
      order.setLong(1, amount);
      var rows = order.executeQuery();
      rows.next();
      long id = rows.getLong(1);
      event.setString(1, Long.toString(id));
      event.setString(2, "{\"order\": %d, \"amount\": %d}".formatted(id, amount));
      event.executeUpdate();
    }
    // One transaction: order and event are both committed, or neither. Nothing is sent to Kafka here.
    db.commit();
  }

  public static void main(String[] args) throws SQLException {
    try (var db = DriverManager.getConnection(System.getenv("DATABASE_URL"))) {
      db.setAutoCommit(false);
      for (int n = Integer.parseInt(args[0]); n > 0; n--) {
        placeOrder(db, ThreadLocalRandom.current().nextLong(100, 10_000));
      }
    }
  }
}
