package config

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

const (
	secretsFile = "secrets.toml" // in the data directory

	// secretSize is what is generated, in bytes; it is written as twice as many
	// hex digits, and the digits are the secret.
	secretSize = 32
)

// Secrets are the secrets that the program runs with; none is empty.
type Secrets struct {
	Master      Secret // signs sync tokens
	MetricsHash Secret // makes anonymous user ids
	LeaseKey    Secret // signs the queue's lease tokens
	AdminToken  Secret // opens the operator's door
}

// EnsureSecrets returns the configured secrets and, for those that are not
// configured, the ones in secrets.toml in the data directory, which it generates
// out of random where they are missing. It makes the data directory if needed.
//
// The file is complete and durable before EnsureSecrets returns, only its owner
// can read it, and of several processes that start at once all get the same
// secrets. A file that everybody can read is refused; for one that the owner's
// group can read there is a warning, because volume managers set that bit.
//
// Processes that share an engine have no data directory in common: there the
// secrets that are not configured follow from the master secret.
func (c *Config) EnsureSecrets(random io.Reader) (s Secrets, warnings []string, err error) {
	master := c.Sync.MasterSecret
	if c.Sync.MasterSecretFile != "" {
		if master, err = readMaster(c.Sync.MasterSecretFile); err != nil {
			return Secrets{}, nil, err
		}
	}
	wanted := []wantedSecret{
		{"master_secret", master, &s.Master},
		{"metrics_hash_secret", c.TokenServer.MetricsHashSecret, &s.MetricsHash},
		{"lease_key", "", &s.LeaseKey},
		{"admin_token", c.Admin.Token, &s.AdminToken},
	}
	if c.Engine.Shared() {
		return s, nil, derive(master, wanted)
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return Secrets{}, nil, fmt.Errorf("make the data directory: %w", err)
	}
	path := filepath.Join(c.DataDir, secretsFile)
	warnings, err = fill(path, wanted, random)
	if errors.Is(err, fs.ErrExist) {
		// Another process has made the file in between: its secrets count.
		warnings, err = fill(path, wanted, random)
	}
	if err != nil {
		return Secrets{}, nil, err
	}
	return s, warnings, nil
}

// derive sets every wanted secret: to what is configured, or to one that follows
// from the master secret and tells nothing about it (RFC 5869).
func derive(master Secret, wanted []wantedSecret) error {
	for _, w := range wanted {
		*w.dst = w.configured
		if w.configured != "" {
			continue
		}
		b, err := hkdf.Key(sha256.New, []byte(master), nil, "holdfast "+w.name, secretSize)
		if err != nil {
			return fmt.Errorf("derive %s: %w", w.name, err)
		}
		*w.dst = Secret(hex.EncodeToString(b))
	}
	return nil
}

type wantedSecret struct {
	name       string
	configured Secret
	dst        *Secret
}

// fill sets every wanted secret, and writes the file if one had to be generated.
// The error is fs.ErrExist if there was no file first and one at the end.
func fill(path string, wanted []wantedSecret, random io.Reader) (warnings []string, err error) {
	known, warnings, err := readSecrets(path)
	if err != nil {
		return nil, err
	}
	isNew, generated := known == nil, false
	if isNew {
		known = map[string]string{}
	}
	for _, w := range wanted {
		*w.dst = w.configured
		if w.configured != "" {
			continue
		}
		if known[w.name] == "" {
			b := make([]byte, secretSize)
			if _, err := io.ReadFull(random, b); err != nil {
				return nil, fmt.Errorf("generate %s: %w", w.name, err)
			}
			known[w.name], generated = hex.EncodeToString(b), true
		}
		*w.dst = Secret(known[w.name])
	}
	if !generated {
		return warnings, nil
	}
	place := os.Rename
	if isNew {
		place = linkOrRename
	}
	if err := writeSecrets(path, known, place); err != nil {
		return nil, fmt.Errorf("write the secrets: %w", err)
	}
	return warnings, nil
}

func readMaster(path string) (Secret, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("sync.master_secret_file: %w", err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" {
		return "", fmt.Errorf("sync.master_secret_file: %s is empty", path)
	}
	return Secret(text), nil
}

// readSecrets returns what the file holds, nil if there is none. Its errors do
// not quote the file.
func readSecrets(path string) (known map[string]string, warnings []string, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the secrets: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("read the secrets: %w", err)
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o007 != 0:
		return nil, nil, fmt.Errorf("everybody on this machine can use %s (mode %04o), which holds the secrets of this server: "+
			"chmod 600 it, or remove it to get new secrets if somebody may have read it", path, mode)
	case mode&0o070 != 0:
		warnings = append(warnings, fmt.Sprintf("the group of %s can use it (mode %04o), and it holds the secrets of this server: chmod 600", path, mode))
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, fmt.Errorf("read the secrets: %w", err)
	}
	known = map[string]string{}
	if err := toml.Unmarshal(data, &known); err != nil {
		return nil, nil, fmt.Errorf("%s is not a list of lines such as lease_key = \"...\"; restore it from a backup or remove it to get new secrets", path)
	}
	return known, warnings, nil
}

// writeSecrets makes the file appear at path with all of its contents, or not.
func writeSecrets(path string, secrets map[string]string, place func(from, to string) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".secrets-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // the second name, or what is left after an error
	var text strings.Builder
	text.WriteString("# Secrets of this Holdfast server, generated at its first start.\n" +
		"# Without this file clients and receivers must authenticate anew; nothing else is lost.\n")
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		text.WriteString(name + " = " + quote(secrets[name]) + "\n")
	}
	_, err = f.WriteString(text.String())
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := place(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// linkOrRename puts a file at a place where none is; where a file system has no
// links it overwrites one that appears at the last moment.
func linkOrRename(from, to string) error {
	err := os.Link(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Rename(from, to)
}

// syncDir makes a new name in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
