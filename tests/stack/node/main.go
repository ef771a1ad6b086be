// Command node holds what a node image of kind needs beside Kubernetes' own program: kubeadm, CoreDNS
// with the plugins of kubeadm's Corefile, and as much of crictl as kind asks for. The name it is
// called by says which runs.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	cri "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "kubeadm":
		err = kubeadm.Run()
	case "coredns":
		coremain.Run()
	case "crictl":
		err = crictl(os.Args[1:])
	default:
		err = fmt.Errorf("%s: call me kubeadm, coredns or crictl", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// crictl prints the names of one image, which is all that kind asks crictl for.
func crictl(arguments []string) error {
	if len(arguments) != 2 || arguments[0] != "inspecti" {
		return fmt.Errorf("usage: crictl inspecti IMAGE")
	}
	logger := klog.Background()
	images, err := cri.NewRemoteImageService("unix:///run/containerd/containerd.sock", 10*time.Second, nil, &logger)
	if err != nil {
		return err
	}
	answer, err := images.ImageStatus(context.Background(), &runtime.ImageSpec{Image: arguments[1]}, false)
	if err != nil {
		return err
	}
	if answer.Image == nil {
		return fmt.Errorf("no such image %q", arguments[1])
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"status": map[string]any{
		"id": answer.Image.Id, "repoTags": answer.Image.RepoTags, "repoDigests": answer.Image.RepoDigests,
	}})
}
