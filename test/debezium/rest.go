package debezium

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// startTimeout bounds Await: Java starts, the connector reads the database's types, finds its position and streams.
const startTimeout = 2 * time.Minute

// Failed is the error of a connector or task that has failed and stays so until an operator acts.
type Failed struct {
	What  string // connector or task
	Trace string // Java's
}

func (f *Failed) Error() string { return "the " + f.What + " has failed: " + f.Trace }

// Causes returns the messages of the trace, the outermost first, without source positions.
func (f *Failed) Causes() (list []string) {
	for line := range strings.Lines(f.Trace) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "at ") && !strings.HasPrefix(line, "... ") {
			list = append(list, strings.TrimPrefix(line, "Caused by: "))
		}
	}
	return list
}

// Await waits until the named connector and its task run. A failed task ends the wait (*Failed).
func (c *Connect) Await(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var failed *Failed
	err := c.Proc.Poll(ctx, func(ctx context.Context) error {
		err := c.Running(ctx, name)
		if errors.As(err, &failed) {
			return nil
		}
		return err
	})
	if failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("start Debezium: %w; its log ends with:\n%s", err, child.Tail(c.Log))
	}
	return nil
}

// Listens returns nil when connectors can be created.
func (c *Connect) Listens(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/", nil, nil)
}

// AwaitListening waits until connectors can be created.
func (c *Connect) AwaitListening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.Proc.Poll(ctx, c.Listens); err != nil {
		return fmt.Errorf("start Kafka Connect: %w; its log ends with:\n%s", err, child.Tail(c.Log))
	}
	return nil
}

// Running returns nil when a connector and its task run.
func (c *Connect) Running(ctx context.Context, name string) error {
	status, err := c.status(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case status.Connector.State == "FAILED":
		return &Failed{"connector", status.Connector.Trace}
	case status.Connector.State != "RUNNING":
		return fmt.Errorf("the connector is %s", status.Connector.State)
	case len(status.Tasks) == 0:
		return errors.New("there is no task yet")
	case status.Tasks[0].State == "FAILED":
		return &Failed{"task", status.Tasks[0].Trace}
	case status.Tasks[0].State != "RUNNING":
		return fmt.Errorf("the task is %s", status.Tasks[0].State)
	}
	return nil
}

// Create creates or updates the named connector; over is as in Connector.
func (c *Connect) Create(ctx context.Context, name string, over map[string]string) error {
	config := Connector(over)
	config["name"] = name
	return c.call(ctx, http.MethodPut, "/connectors/"+name+"/config", config, nil)
}

// Delete ends a connector. Its slot stays.
func (c *Connect) Delete(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/connectors/"+name, nil, nil)
}

// Stop stops a connector in order, so that its offsets are stored and its slot is free, and then kills the process:
// SIGTERM would stop the connector too, but the shutdown hooks of Connect and Jetty may wait for each other for ever.
func (c *Connect) Stop(ctx context.Context, name string) error {
	if err := c.call(ctx, http.MethodPut, "/connectors/"+name+"/stop", nil, nil); err != nil {
		return err
	}
	err := c.Proc.Poll(ctx, func(ctx context.Context) error {
		status, err := c.status(ctx, name)
		if err == nil && (status.Connector.State != "STOPPED" || len(status.Tasks) > 0) {
			err = fmt.Errorf("the connector is %s, with %d tasks", status.Connector.State, len(status.Tasks))
		}
		return err
	})
	return errors.Join(err, c.Proc.Kill())
}

// status is what Connect reports about a connector.
type status struct {
	Connector part
	Tasks     []part
}

type part struct{ State, Trace string }

func (c *Connect) status(ctx context.Context, name string) (s status, err error) {
	err = c.call(ctx, http.MethodGet, "/connectors/"+name+"/status", nil, &s)
	return s, err
}

// call calls Connect's REST interface; body and answer are JSON, nil for none.
func (c *Connect) call(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return nil
}
