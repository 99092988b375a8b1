// Serves one file by HTTP, or fetches one: "serve PORT FILE" or "fetch URL FILE".
package main

import (
	"io"
	"log"
	"net/http"
	"os"
)

func main() {
	if os.Args[1] == "serve" {
		bytes, err := os.ReadFile(os.Args[3])
		if err != nil {
			log.Fatal(err)
		}
		http.HandleFunc("/", func(to http.ResponseWriter, _ *http.Request) { to.Write(bytes) })
		log.Fatal(http.ListenAndServe(":"+os.Args[2], nil))
	}
	answer, err := http.Get(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	bytes, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[3], bytes, 0o644); err != nil {
		log.Fatal(err)
	}
}
