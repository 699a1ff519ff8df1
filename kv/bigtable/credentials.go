package bigtable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// clientOptions returns the options of the clients, and says which of the three
// ways to get credentials they take. There is no way from one to the next: a key
// file that cannot be used is an error.
func (o *Options) clientOptions() (opts []option.ClientOption, way string, err error) {
	switch {
	case o.EmulatorHost != "":
		way = "emulator"
		opts = append(opts, option.WithEndpoint(o.EmulatorHost), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	case o.CredentialsPath != "":
		way = "key file"
		if err := checkKeyFile(o.CredentialsPath); err != nil {
			return nil, "", fmt.Errorf("credentials_path: %w", err)
		}
		opts = append(opts, option.WithAuthCredentialsFile(option.ServiceAccount, o.CredentialsPath))
	default:
		way = "application default credentials"
	}
	return append(opts, o.ClientOptions...), way, nil
}

// checkKeyFile refuses a key file that others may read, or that is none. Its
// errors hold nothing of what is in the file.
func checkKeyFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("there is no such file")
	case err != nil:
		return errors.New("the file cannot be examined")
	case !info.Mode().IsRegular():
		return errors.New("it is not a file")
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("others may read the file: its mode is %#o, it must be 0600", info.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return errors.New("the file cannot be read")
	}
	var key struct {
		Type  string `json:"type"`
		Email string `json:"client_email"`
		Key   string `json:"private_key"`
	}
	switch err := json.Unmarshal(b, &key); {
	case err != nil:
		return errors.New("the file is not a key: it is not JSON")
	case key.Type != "service_account":
		return errors.New("the file is not the key of a service account")
	case key.Email == "" || key.Key == "":
		return errors.New("the key lacks client_email or private_key")
	}
	return nil
}
