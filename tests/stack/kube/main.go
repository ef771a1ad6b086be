// Command kube is a whole Kubernetes in one binary: the first argument says
// which component runs. One link instead of eight keeps the build short.
// Under the name kubectl it is kubectl.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	if filepath.Base(os.Args[0]) != "kubectl" {
		if len(os.Args) < 2 {
			usage()
		}
		os.Args = os.Args[1:]
	}
	os.Args[0] = filepath.Base(os.Args[0])
	var cmd *cobra.Command
	switch os.Args[0] {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "coredns":
		dnsserver.Directives = []string{"ready", "errors", "kubernetes"}
		coremain.Run()
		return
	case "kube-apiserver":
		cmd = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		cmd = controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		cmd = scheduler.NewSchedulerCommand()
	case "kubelet":
		cmd = kubelet.NewKubeletCommand(context.Background())
	case "kube-proxy":
		cmd = proxy.NewProxyCommand()
	case "kubectl":
		cmd = kubectl.NewDefaultKubectlCommand()
	default:
		usage()
	}
	os.Exit(cli.Run(cmd))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: kube {"+strings.Join([]string{"etcd", "kube-apiserver", "kube-controller-manager",
		"kube-scheduler", "kubelet", "kube-proxy", "coredns", "kubectl"}, "|")+"} [flags]")
	os.Exit(2)
}
