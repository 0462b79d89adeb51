//go:build unix

package localpg

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// serverCredential returns the account for the server: nil means this process's own.
// PostgreSQL refuses root, so for root it is postgres or, if that is missing, nobody.
func serverCredential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("PostgreSQL refuses to run as root, and there is no account postgres or nobody: %w", err)
		}
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("account %s: %w", account.Username, err)
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("account %s: %w", account.Username, err)
	}
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	ids, err := account.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("account %s: %w", account.Username, err)
	}
	for _, id := range ids {
		gid, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("account %s: %w", account.Username, err)
		}
		credential.Groups = append(credential.Groups, uint32(gid))
	}
	return credential, nil
}
