// Command kube-network-policies decides for each new connection of a pod whether the NetworkPolicies of the cluster allow it.
//
// The verdicts are those of sigs.k8s.io/kube-network-policies. This command differs from the one there in two points: it
// takes a kubeconfig, because it runs beside the cluster and not in a pod, and it does not depend on nftables' queue
// expression, which some kernels lack: the packets come from an iptables rule that devcluster sets up.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file with the address and the credentials of the API server")
	node := flag.String("node", "", "name of the node whose pods are guarded")
	queue := flag.Int("queue", 100, "number of the netfilter queue that carries the packets")
	table := flag.String("table", "", "name of the nftables table that may be used")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, networkpolicy.Config{NodeName: *node, QueueID: *queue, NFTableName: *table}); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig string, config networkpolicy.Config) error {
	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	cluster := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(
		client,
		cluster.Networking().V1().NetworkPolicies(),
		cluster.Core().V1().Namespaces(),
		cluster.Core().V1().Pods(),
		nil, nil, nil, nil, // nodes and the admin policies, which need custom resources of their own
		config,
	)
	if err != nil {
		return err
	}
	cluster.Start(ctx.Done())
	return controller.Run(ctx)
}
