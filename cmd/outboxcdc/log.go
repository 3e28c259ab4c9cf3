package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// logLevel is log.level, which a reload may change.
func logLevel(cfg *config.Config) *slog.LevelVar {
	level := new(slog.LevelVar)
	level.Set(parseLevel(cfg))
	return level
}

func parseLevel(cfg *config.Config) slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		panic(fmt.Sprintf("log level %q passed validation", cfg.Log.Level))
	}
	return level
}

// readableDuration writes a duration as 5s instead of 5000000000 nanoseconds.
func readableDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// newLogger returns a logger that writes to w: text on a terminal, and JSON otherwise.
func newLogger(level slog.Leveler, w *os.File) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: readableDuration}
	if isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
