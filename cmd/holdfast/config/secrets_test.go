package config

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// inFreshDir returns a configuration whose data directory does not exist yet.
func inFreshDir(t *testing.T) *Config {
	c := Default()
	c.DataDir = filepath.Join(t.TempDir(), "a", "data")
	return c
}

func ensure(t *testing.T, c *Config) Secrets {
	t.Helper()
	s, warnings, err := c.EnsureSecrets(rand.Reader)
	if err != nil {
		t.Fatalf("EnsureSecrets: %v", err)
	}
	if len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	return s
}

func modeOf(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestSecretsAreGeneratedOnceAndForTheOwnerOnly(t *testing.T) {
	c := inFreshDir(t)
	first := ensure(t, c)
	seen := map[Secret]bool{}
	for _, s := range []Secret{first.Master, first.MetricsHash, first.LeaseKey, first.AdminToken} {
		if len(s) != 2*secretSize || seen[s] {
			t.Errorf("secret of %d bytes, seen before: %v", len(s), seen[s])
		}
		seen[s] = true
	}
	if again := ensure(t, c); again != first {
		t.Error("other secrets at the second start")
	}
	if m := modeOf(t, c.DataDir); m != 0o700 {
		t.Errorf("directory has mode %o, want 700", m)
	}
	if m := modeOf(t, filepath.Join(c.DataDir, secretsFile)); m != 0o600 {
		t.Errorf("file has mode %o, want 600", m)
	}
	entries, err := os.ReadDir(c.DataDir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files in the directory, %v; want only the secrets", len(entries), err)
	}
}

func TestConfiguredSecretsAreNeitherGeneratedNorStored(t *testing.T) {
	c := inFreshDir(t)
	c.Sync.MasterSecretFile = file(t, " my secret \r\n")
	c.TokenServer.MetricsHashSecret, c.Admin.Token = "hash", "token"
	s := ensure(t, c)
	if s.Master != " my secret " || s.MetricsHash != "hash" || s.AdminToken != "token" || len(s.LeaseKey) != 2*secretSize {
		t.Error("the configured secrets were not taken")
	}
	data, err := os.ReadFile(filepath.Join(c.DataDir, secretsFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "my secret") || strings.Contains(string(data), "master_secret") {
		t.Error("a configured secret is in the file")
	}
}

func TestSecretsAddedLaterKeepTheOthers(t *testing.T) {
	c := inFreshDir(t)
	before := ensure(t, c)
	path := filepath.Join(c.DataDir, secretsFile)
	old := fmt.Sprintf("master_secret = %q\nof_a_newer_version = \"x\"\n", string(before.Master))
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	after := ensure(t, c)
	if after.Master != before.Master || after.LeaseKey == before.LeaseKey || after.LeaseKey == "" {
		t.Error("want the old master secret and a new lease key")
	}
	if data, err := os.ReadFile(path); err != nil || !strings.Contains(string(data), `of_a_newer_version = "x"`) {
		t.Errorf("an unknown secret was lost (%v)", err)
	}
	if again := ensure(t, c); again != after {
		t.Error("the added secrets were not stored")
	}
}

func TestProcessesThatStartTogetherGetTheSameSecrets(t *testing.T) {
	for range 20 {
		c := inFreshDir(t)
		var wg sync.WaitGroup
		got := make([]Secrets, 4)
		for i := range got {
			wg.Go(func() { got[i] = ensure(t, c) })
		}
		wg.Wait()
		for _, s := range got {
			if s != got[0] {
				t.Fatal("different secrets")
			}
		}
	}
}

func TestSecretsThatOthersCanUse(t *testing.T) {
	for _, c := range []struct {
		mode    fs.FileMode
		refused bool
		warned  bool
	}{{0o600, false, false}, {0o400, false, false}, {0o640, false, true}, {0o660, false, true}, {0o644, true, false}, {0o602, true, false}} {
		cfg := inFreshDir(t)
		ensure(t, cfg)
		path := filepath.Join(cfg.DataDir, secretsFile)
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		s, warnings, err := cfg.EnsureSecrets(rand.Reader)
		if (err != nil) != c.refused || (len(warnings) > 0) != c.warned {
			t.Errorf("mode %o: error %v, warnings %q", c.mode, err, warnings)
		}
		if err != nil && (s != Secrets{} || !strings.Contains(err.Error(), "chmod 600")) {
			t.Errorf("mode %o: error %v", c.mode, err)
		}
	}
}

func TestUnusableSecretFilesAreRefusedWithoutQuotingThem(t *testing.T) {
	for _, text := range []string{"hunter2", "lease_key = hunter2", "lease_key = 'hunter2", "lease_key = ['hunter2']"} {
		c := inFreshDir(t)
		ensure(t, c)
		if err := os.WriteFile(filepath.Join(c.DataDir, secretsFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := c.EnsureSecrets(rand.Reader)
		wantError(t, err, "is not a list of lines", "remove it to get new secrets")
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
	c := inFreshDir(t)
	c.Sync.MasterSecretFile = file(t, "\n")
	_, _, err := c.EnsureSecrets(rand.Reader)
	wantError(t, err, "sync.master_secret_file", "is empty")
	c.Sync.MasterSecretFile = "/nonexistent"
	_, _, err = c.EnsureSecrets(rand.Reader)
	wantError(t, err, "sync.master_secret_file", "/nonexistent")
}

func TestWithoutRandomnessNothingIsWritten(t *testing.T) {
	c := inFreshDir(t)
	_, _, err := c.EnsureSecrets(bytes.NewReader(make([]byte, 3*secretSize+1)))
	wantError(t, err, "generate admin_token")
	if entries, err := os.ReadDir(c.DataDir); err != nil || len(entries) != 0 {
		t.Errorf("%d files, %v", len(entries), err)
	}
}

func TestAFailedWriteLeavesTheOldSecrets(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, secretsFile)
	refuse := errors.New("refused")
	err := writeSecrets(path, map[string]string{"a": "b"}, func(string, string) error { return refuse })
	if !errors.Is(err, refuse) {
		t.Errorf("error %v, want the cause", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	const text = "hunter2hunter2hunter2"
	l := load(t, Options{Env: []string{"HOLDFAST_DATA_DIR=" + t.TempDir(),
		"HOLDFAST_SYNC_MASTER_SECRET=" + text, "HOLDFAST_TOKENSERVER_METRICS_HASH_SECRET=" + text, "HOLDFAST_ADMIN_TOKEN=" + text}})
	s := ensure(t, l.Config)
	var out bytes.Buffer
	if err := WriteEffective(&out, l); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), `"(secret)"`); n != 3 {
		t.Errorf("%d cut secrets, want 3:\n%s", n, &out)
	}
	for _, v := range []any{s, *l.Config, l.Sync.MasterSecret} {
		fmt.Fprintf(&out, "%v %+v %#v %s %q %x\n", v, v, v, v, v, v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		if err := json.NewEncoder(&out).Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, shown := range []string{text, fmt.Sprintf("%x", text)} {
		if strings.Contains(out.String(), shown) {
			t.Errorf("a secret is shown in\n%s", &out)
		}
	}
}

func TestAFileWithSecretsThatEverybodyCanReadIsReported(t *testing.T) {
	path := file(t, "admin.token = '0123456789abcdef'\n")
	for mode, want := range map[fs.FileMode]int{0o600: 0, 0o640: 0, 0o644: 1} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		l := load(t, Options{File: path})
		if len(l.Warnings) != want || want == 1 && !strings.Contains(l.Warnings[0], "chmod 640") {
			t.Errorf("mode %o: warnings %q", mode, l.Warnings)
		}
	}
}

func TestProcessesThatShareAnEngineDeriveTheSameSecrets(t *testing.T) {
	secretsOf := func(master Secret) Secrets {
		c := inFreshDir(t)
		c.Engine.Kind, c.Sync.MasterSecret, c.Admin.Token = EnginePostgres, master, "a configured token"
		s := ensure(t, c)
		if _, err := os.Stat(c.DataDir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the data directory was made: %v", err)
		}
		return s
	}
	one, two, other := secretsOf("0123456789abcdef"), secretsOf("0123456789abcdef"), secretsOf("0123456789abcdeF")
	if one != two {
		t.Error("two processes have different secrets")
	}
	if one.Master != "0123456789abcdef" || one.AdminToken != "a configured token" {
		t.Error("configured secrets do not count")
	}
	if len(one.LeaseKey) != 2*secretSize || len(one.MetricsHash) != 2*secretSize || one.LeaseKey == one.MetricsHash {
		t.Errorf("derived secrets of %d and %d bytes", len(one.LeaseKey), len(one.MetricsHash))
	}
	if one.LeaseKey == other.LeaseKey {
		t.Error("another master secret gives the same lease key")
	}
}
