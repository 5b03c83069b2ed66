import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * Writes messages.json: frames written by Kafka's own serializers, together with the values in them.
 *
 * The values are generated from the schemas in kafka-clients (common/message/*.json), so this program does not depend
 * on the fields. Kafka's JSON converters build each message and its serializers write it; it is read back and compared
 * before it is printed. README.md contains the command.
 */
public class GoldenBytes {
    record Api(String name, int oldest, int newest) {}

    // The versions that the Python package declares.
    static final List<Api> APIS = List.of(
        new Api("Produce", 3, 13), new Api("Fetch", 4, 13), new Api("ListOffsets", 1, 7),
        new Api("Metadata", 0, 13), new Api("OffsetFetch", 1, 8), new Api("FindCoordinator", 0, 6),
        new Api("SaslHandshake", 0, 1), new Api("ApiVersions", 0, 4), new Api("CreateTopics", 2, 7),
        new Api("InitProducerId", 0, 5), new Api("AddPartitionsToTxn", 0, 3), new Api("AddOffsetsToTxn", 0, 4),
        new Api("EndTxn", 0, 5), new Api("TxnOffsetCommit", 0, 5), new Api("SaslAuthenticate", 0, 2),
        new Api("DescribeProducers", 0, 0),
        new Api("GetTelemetrySubscriptions", 0, 0), new Api("PushTelemetry", 0, 0), new Api("OffsetCommit", 2, 9),
        new Api("JoinGroup", 0, 9), new Api("Heartbeat", 0, 4), new Api("LeaveGroup", 0, 5), new Api("SyncGroup", 0, 5));

    static final ObjectMapper JSON = new ObjectMapper().enable(JsonParser.Feature.ALLOW_COMMENTS);
    static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        OUT.println("{\"kafka\": \"" + AppInfoParser.getVersion() + "\",");
        OUT.println("\"errors\": " + errors() + ",");
        OUT.println("\"schemas\": {\n" + String.join(",\n", schemas()) + "\n},");
        List<String> cases = new ArrayList<>();
        for (Api api : APIS) {
            for (String kind : List.of("Request", "Response")) {
                for (int version = api.oldest; version <= api.newest; version++) {
                    for (Filling filling : Filling.values()) {
                        // In different versions, long values differ only in the encoding of their lengths.
                        if (filling != Filling.LARGE || version == api.oldest || version == api.newest) {
                            cases.add(goldenCase(api.name + kind, (short) version, filling));
                        }
                    }
                }
            }
        }
        OUT.println("\"cases\": [\n" + String.join(",\n", cases) + "\n]}");
        OUT.flush();
    }

    static ObjectNode errors() {
        ObjectNode codes = JSON.createObjectNode();
        for (Errors error : Errors.values()) {
            codes.put(error.name(), error.code());
        }
        return codes;
    }

    static List<String> schemas() throws Exception {
        List<String> schemas = new ArrayList<>();
        for (Api api : APIS) {
            for (String kind : List.of("Request", "Response")) {
                JsonNode schema = schema(api.name + kind);
                for (JsonNode described : schema.findParents("about")) {
                    ((ObjectNode) described).remove("about");
                }
                schemas.add("\"" + api.name + kind + "\": " + JSON.writeValueAsString(schema));
            }
        }
        return schemas;
    }

    static String goldenCase(String name, short version, Filling filling) throws Exception {
        Class<?> type = Class.forName("org.apache.kafka.common.message." + name + "Data");
        Class<?> converter = Class.forName(type.getName() + "JsonConverter");
        JsonNode values;
        ApiMessage message;
        if (filling == Filling.DEFAULT) {
            message = (ApiMessage) type.getDeclaredConstructor().newInstance();
            values = (JsonNode) converter.getMethod("write", type, short.class).invoke(null, message, version);
        } else {
            values = new Values(schema(name), version, filling).message();
            message = (ApiMessage) converter.getMethod("read", JsonNode.class, short.class).invoke(null, values, version);
        }
        boolean isRequest = name.endsWith("Request");
        int correlationId = 0x01020304 + version;
        String clientId = filling == Filling.NULLS ? null : "client-" + version;
        ApiKeys key = ApiKeys.forId(message.apiKey());
        ObjectNode result = JSON.createObjectNode();
        result.put("message", name).put("version", version).put("case", filling.name().toLowerCase());
        result.put("correlation_id", correlationId);
        String header;
        if (isRequest) {
            result.put("client_id", clientId);
            RequestHeaderData data = new RequestHeaderData().setRequestApiKey(key.id).setRequestApiVersion(version)
                .setCorrelationId(correlationId).setClientId(clientId);
            header = hex(data, key.requestHeaderVersion(version));
        } else {
            ResponseHeaderData data = new ResponseHeaderData().setCorrelationId(correlationId);
            header = hex(data, key.responseHeaderVersion(version));
        }
        String body = hex(message, version);
        check(message, body, version, type);
        result.put("frame", header + body).set("values", values);
        return JSON.writeValueAsString(result);
    }

    static String hex(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        if (buffer.hasRemaining()) {
            throw new IllegalStateException(message + " is smaller than announced");
        }
        return HexFormat.of().formatHex(buffer.array());
    }

    static void check(ApiMessage message, String body, short version, Class<?> type) throws Exception {
        ApiMessage again = (ApiMessage) type.getDeclaredConstructor().newInstance();
        again.read(new ByteBufferAccessor(ByteBuffer.wrap(HexFormat.of().parseHex(body))), version);
        if (!again.equals(message)) {
            throw new IllegalStateException(message + " is read as " + again);
        }
    }

    static JsonNode schema(String name) throws Exception {
        try (InputStream source = ApiKeys.class.getResourceAsStream("/common/message/" + name + ".json")) {
            return JSON.readTree(source);
        }
    }

    enum Filling {
        /** The defaults of the constructor. */
        DEFAULT,
        /** Every field set, two elements in every array, every tagged field present. */
        FULL,
        /** Null wherever it is allowed, numbers at the ends of their ranges, no tagged field. */
        NULLS,
        /** Lengths and counts that need more than one byte as a varint. */
        LARGE
    }

    /** Generates values for a schema; a counter makes them distinct. */
    static class Values {
        final JsonNode schema;
        final short version;
        final Filling filling;
        int counter = 0;

        Values(JsonNode schema, short version, Filling filling) {
            this.schema = schema;
            this.version = version;
            this.filling = filling;
        }

        ObjectNode message() {
            return struct(schema.get("fields"));
        }

        ObjectNode struct(JsonNode fields) {
            ObjectNode node = JSON.createObjectNode();
            for (JsonNode field : fields) {
                boolean skipped = filling == Filling.NULLS && field.has("tag");
                if (isIn(field.get("versions").asText()) && !skipped) {
                    String name = field.get("name").asText();
                    node.set(name.substring(0, 1).toLowerCase() + name.substring(1), value(field));
                }
            }
            return node;
        }

        JsonNode value(JsonNode field) {
            JsonNode nullable = field.get("nullableVersions");
            if (filling == Filling.NULLS && nullable != null && isIn(nullable.asText())) {
                return JSON.nullNode();
            }
            String type = field.get("type").asText();
            if (!type.startsWith("[]")) {
                return single(type, field);
            }
            ArrayNode array = JSON.createArrayNode();
            String element = type.substring(2);
            boolean isPrimitive = Character.isLowerCase(element.charAt(0));
            int count = filling == Filling.NULLS ? 1 : filling == Filling.LARGE && isPrimitive ? 130 : 2;
            for (int i = 0; i < count; i++) {
                array.add(single(element, field));
            }
            return array;
        }

        JsonNode single(String type, JsonNode field) {
            counter++;
            boolean ends = filling == Filling.NULLS;
            boolean odd = counter % 2 == 1;
            switch (type) {
                case "bool":
                    return JSON.getNodeFactory().booleanNode(!ends);
                case "int8":
                    return JSON.getNodeFactory().numberNode(ends ? (odd ? Byte.MAX_VALUE : Byte.MIN_VALUE) : counter % 100 + 1);
                case "int16":
                    return JSON.getNodeFactory().numberNode(ends ? (odd ? Short.MAX_VALUE : Short.MIN_VALUE) : 1000 + counter);
                case "int32":
                    return JSON.getNodeFactory().numberNode(ends ? (odd ? Integer.MAX_VALUE : Integer.MIN_VALUE) : 100_000 + counter);
                case "int64":
                    return JSON.getNodeFactory().numberNode(ends ? (odd ? Long.MAX_VALUE : Long.MIN_VALUE) : 1_000_000_000_000L + counter);
                case "string":
                    return JSON.getNodeFactory().textNode(ends ? "" : text());
                case "uuid":
                    Uuid uuid = ends ? Uuid.ZERO_UUID : new Uuid(0x1122334455667788L, 0x99AABBCCDDEE0000L + counter);
                    return JSON.getNodeFactory().textNode(uuid.toString());
                case "bytes":
                case "records":
                    return JSON.getNodeFactory().binaryNode(bytes());
                default:
                    return struct(fieldsOf(type, field));
            }
        }

        String text() {
            // A two-byte, a three-byte and a four-byte character.
            String text = "text-" + counter + "-é-漢-\uD83D\uDE00";
            return filling == Filling.LARGE ? text + "x".repeat(200) : text;
        }

        byte[] bytes() {
            byte[] bytes = new byte[filling == Filling.NULLS ? 0 : filling == Filling.LARGE ? 300 : 20];
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = (byte) (counter + i * 7);
            }
            return bytes;
        }

        JsonNode fieldsOf(String type, JsonNode field) {
            if (field.has("fields")) {
                return field.get("fields");
            }
            for (JsonNode common : schema.get("commonStructs")) {
                if (common.get("name").asText().equals(type)) {
                    return common.get("fields");
                }
            }
            throw new IllegalStateException("no struct " + type);
        }

        boolean isIn(String versions) {
            if (versions.endsWith("+")) {
                return version >= Integer.parseInt(versions.substring(0, versions.length() - 1));
            }
            String[] ends = versions.split("-");
            return version >= Integer.parseInt(ends[0]) && version <= Integer.parseInt(ends[ends.length - 1]);
        }
    }
}
