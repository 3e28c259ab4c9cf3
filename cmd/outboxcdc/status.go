package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
)

func newStatusCommand(load func() (*config.Config, error)) *cobra.Command {
	var given string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the daemon",
		Long: "Print /status of the daemon, from its HTTP listener (http.listen, or --url): state and reason, lag, the WAL that the\n" +
			"slot retains, held keys, the last error. Exit code: 0 the daemon is ready; 69 it is not, or does not answer. While no daemon\n" +
			"runs, outboxcdc doctor shows the slot.",
		Args: noArgs,
		RunE: withConfig(load, func(cmd *cobra.Command, cfg *config.Config) error {
			at, err := statusURL(given, cfg.HTTP.Listen)
			if err != nil {
				return err
			}
			body, err := askDaemon(cmd, at)
			if err != nil {
				return exit.With(exit.Unavailable, fmt.Errorf("no daemon answers at %s: %w; remedy: if it has ended, the last line of its log says why, and outboxcdc doctor shows the slot", at.Redacted(), err))
			}
			if err := written(cmd.OutOrStdout().Write(body)); err != nil {
				return err
			}
			var st report
			if err := json.Unmarshal(body, &st); err != nil || !st.Ready {
				return exit.Logged(exit.Unavailable, errors.New("not ready"))
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&given, "url", "", "address of the daemon's HTTP listener, such as http://host:9464 (default: http.listen, on this machine)")
	return cmd
}

// askDaemon returns the answer of /status, indented.
func askDaemon(cmd *cobra.Command, at *url.URL) ([]byte, error) {
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: 5 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which may have a password
		}
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the response is %s", res.Status)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(body), "", "  "); err != nil || !bytes.Contains(body, []byte(`"state"`)) {
		return nil, errors.New("the response is not that of outboxcdc")
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// statusURL is the URL of the daemon's /status: given, or that of the listener on this machine.
func statusURL(given, listen string) (*url.URL, error) {
	switch {
	case given == "" && listen == "":
		return nil, usageError(errors.New("http.listen is empty, so the daemon has no listener: outboxcdc doctor shows the slot"))
	case given == "":
		host, port, err := net.SplitHostPort(listen)
		if err != nil {
			return nil, fmt.Errorf("http.listen: %w", err)
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "localhost"
		}
		given = "http://" + net.JoinHostPort(host, port)
	}
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, usageError(errors.New("--url: write the address of the daemon's HTTP listener, such as http://localhost:9464"))
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/status"
	}
	return u, nil
}
