import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;

/** Serves one file by HTTP, or fetches one: "serve PORT FILE" or "fetch URL FILE". */
public class Web {
    public static void main(String[] words) throws Exception {
        if (words[0].equals("serve")) {
            byte[] bytes = Files.readAllBytes(Path.of(words[2]));
            var server = HttpServer.create(new InetSocketAddress(Integer.parseInt(words[1])), 0);
            server.createContext("/", asked -> {
                asked.sendResponseHeaders(200, bytes.length);
                try (var body = asked.getResponseBody()) {
                    body.write(bytes);
                }
            });
            server.start();
            return;
        }
        var request = HttpRequest.newBuilder(URI.create(words[1])).build();
        var answer = HttpClient.newHttpClient().send(request, BodyHandlers.ofFile(Path.of(words[2])));
        if (answer.statusCode() != 200) {
            System.exit(1);
        }
    }
}
