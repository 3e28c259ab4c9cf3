// Command generate writes the Grafana dashboard, deploy/grafana/outboxcdc.json. Without an argument it prints it.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	text, err := generate()
	if err == nil && len(os.Args) > 1 {
		err = os.WriteFile(os.Args[1], text, 0o644)
	} else if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(dashboard())
	return out.Bytes(), err
}
