package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// DefaultFile is what [Find] looks for when no file is named.
const DefaultFile = "./outboxcdc.yaml"

// Find gives the files to load: those named, else [DefaultFile] if there is one, else none (the environment alone).
func Find(files []string) []string {
	if len(files) > 0 {
		return files
	}
	if _, err := os.Stat(DefaultFile); err == nil || !errors.Is(err, os.ErrNotExist) {
		return []string{DefaultFile} // one that is there and unreadable is an error, not an absence
	}
	return nil
}

// Load reads the settings: defaults, then the files in order (without any: [Find]), then the environment given as
// "NAME=value", then those of the command line as "path=value"; later wins, key by key, a list as a whole. The result is
// validated. On errors it returns them all, joined; each is an [*Error], see [Errors].
func Load(files []string, environ []string, flags ...string) (*Config, error) {
	c, err := Read(files, environ, flags...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Read is [Load] for callers that look for further errors: what could be read is returned beside the errors, with defaults in the
// place of the rest; nil if a file could not be opened.
func Read(files []string, environ []string, flags ...string) (*Config, error) {
	var sources []source
	var errs []error
	for _, name := range Find(files) {
		data, err := readFile(name)
		if err != nil {
			errs = append(errs, &Error{Problem: "read the configuration: " + err.Error()})
			continue
		}
		sources = append(sources, source{name, data})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return load(sources, environ, flags...)
}

// source is one file's name and content.
type source struct {
	name string
	data []byte
}

// readFile reads a little more than a file may have, so that a device or a log is refused and not swallowed.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}

// load is Read without the file system.
func load(sources []source, environ []string, flags ...string) (*Config, error) {
	c := Default()
	set := func(s *setting, name string, r raw, where string) error {
		if err := s.store(c, r); err != nil {
			return err
		}
		c.origins[s.path] = where
		c.noteName(s, name)
		return nil
	}
	var errs []error
	for _, src := range sources {
		errs = append(errs, readYAML(src.name, src.data, variables(environ), set))
	}
	errs = append(errs, readEnvironment(environ, set), readFlags(flags, set))
	written := errors.Join(errs...)
	c.applyPreset()
	if err := errors.Join(c.settleMissingTopic(), c.applyOutboxes(), c.Validate()); err != nil {
		return c, errors.Join(written, besides(err, written))
	}
	return c, written
}

// besides is what is wrong whatever becomes of what could not be read: a default may stand in the place of that, so what
// is not set is not judged, nor what stands beside it.
func besides(err, written error) error {
	if written == nil {
		return err
	}
	section := func(path string) string { return path[:strings.LastIndexByte(path, '.')+1] }
	unread := map[string]bool{}
	for _, e := range Errors(written) {
		if e.Path != "" {
			unread[section(e.Path)] = true
		}
	}
	var errs []error
	for _, e := range Errors(err) {
		if e.Where != "" && !unread[section(e.Path)] {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// foreign are prefixes of variables that are read by others: tests, the bundled servers' cache, `setup`.
var foreign = []string{"OUTBOXCDC_TEST_", "OUTBOXCDC_CACHE", "OUTBOXCDC_PG_BIN_", "OUTBOXCDC_SETUP_URL"}

// Kubernetes puts these into every pod of a namespace that has a Service called outboxcdc or outboxcdc-…; nobody
// mistyped them. The values are checked too, so that a mistyped OUTBOXCDC_HTTP_PORT=9464 is still found.
var (
	serviceLink      = regexp.MustCompile(`^OUTBOXCDC_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$`)
	servicePort      = regexp.MustCompile(`^OUTBOXCDC_(\w+_)?PORT$`)
	servicePortValue = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

func readEnvironment(environ []string, set func(s *setting, name string, r raw, where string) error) error {
	byVariable := map[string]string{} // → name of the setting
	var variables []string
	for _, s := range knownSettings() {
		byVariable[EnvName(s.path)] = s.path
	}
	for _, s := range shownSettings() {
		variables = append(variables, EnvName(s.path))
	}
	for former := range formerNames {
		byVariable[EnvName(former)] = former
	}
	var errs []error
	given := names{}
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || isForeign(name, value) {
			continue
		}
		path, ok := byVariable[name]
		if !ok {
			problem := "unknown environment variable"
			if best := Nearest(name, variables); best != "" {
				problem += fmt.Sprintf("; did you mean %s?", best)
			} else {
				problem += "; a setting's name is OUTBOXCDC_ and its path in capitals, e.g. " + EnvName("postgres.slot")
			}
			errs = append(errs, &Error{Where: name, Problem: problem})
			continue
		}
		s, _ := knownTree().find(path)
		err := given.check(s, path)
		if err == nil {
			err = set(s, path, raw{text: value}, name)
		}
		if err != nil {
			errs = append(errs, &Error{Where: name, Path: path, Problem: err.Error()})
		}
	}
	return errors.Join(errs...)
}

// readFlags takes "path=value" of the command line, which everybody on the machine can see.
func readFlags(flags []string, set func(s *setting, name string, r raw, where string) error) error {
	const where = "--set"
	var errs []error
	for _, flag := range flags {
		path, value, ok := strings.Cut(flag, "=")
		s, known := knownTree().find(path)
		switch {
		case !ok:
			errs = append(errs, &Error{Where: where, Problem: quote(path) + " is not setting=value, e.g. log.level=debug"})
		case !known:
			problem := "unknown setting " + quote(path)
			if best := Nearest(path, paths(shownSettings())); best != "" {
				problem += fmt.Sprintf("; did you mean %q?", best)
			}
			errs = append(errs, &Error{Where: where, Problem: problem})
		case s.secret:
			errs = append(errs, &Error{Where: where, Path: path, Problem: "is a secret, and everybody on this machine can see a command line; use " +
				EnvName(path) + ", " + EnvName(path) + "_FILE or a file"})
		default:
			if err := set(s, path, raw{text: value}, where); err != nil {
				errs = append(errs, &Error{Where: where, Path: path, Problem: err.Error()})
			}
		}
	}
	return errors.Join(errs...)
}

func isForeign(name, value string) bool {
	if slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return true
	}
	return serviceLink.MatchString(name) || (servicePort.MatchString(name) && servicePortValue.MatchString(value))
}
